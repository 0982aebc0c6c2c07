//! What can be asked of an agent, and who may ask for it.
//!
//! A client connects to the agent's Unix socket and sends a [`Request`]; it gets a [`Reply`], and may send the next one.
//! Messages are those of `wire`. Each request has a version. The agent answers only its own version; to any other it replies
//! with the version that it knows ([`Refusal::Version`]). Fields of a request that it does not know are ignored; an order with
//! such a field is refused.
//!
//! | who | may |
//! | --- | --- |
//! | whoever may open the socket (mode 0660: root, and the group `teiji` if the host has one) | read |
//! | user 0, by the credentials that the kernel tells of the connection | change |
//!
//! The front hands an [`Order`] on to the privileged part as it is. That part takes nothing but an `Order`, of at most 64
//! KiB: whoever has taken over the front can do what the operator could do with these orders, and no more. None of them
//! names a file, a program, or a setting of the host; the values of a trace are bounded and checked.

use super::detached::TraceOrder;
use serde::{Deserialize, Serialize};
use teiji_model::status::{AgentStatus, LinksStatus, Status, TraceStatus};

/// The version of the requests.
pub const VERSION: u32 = 1;

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// [`VERSION`].
    pub version: u32,
    /// What is asked for.
    pub order: serde_json::Value,
}

/// What an agent can be asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Order {
    /// What it does, and what teiji has changed. Changes nothing.
    Status,
    /// Start a trace.
    Trace(TraceOrder),
    /// The traces that the agent runs or has run. Changes nothing.
    Traces,
    /// End the trace of this number.
    StopTrace(u32),
    /// Remove the trace of this number, which has ended.
    RemoveTrace(u32),
}

impl Order {
    /// Whether it changes anything, so that only user 0 may ask for it.
    pub fn changes(&self) -> bool {
        !matches!(self, Order::Status | Order::Traces)
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// The version of the requests that the agent answers.
    pub version: u32,
    /// What was asked for, or why not.
    pub result: Result<Answer, Refusal>,
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Answer {
    /// To [`Order::Status`].
    Status(Box<FullStatus>),
    /// To [`Order::StopTrace`] and [`Order::RemoveTrace`]: it is done.
    Done,
    /// To [`Order::Trace`]: its number.
    Started(u32),
    /// To [`Order::Traces`], by number.
    Traces(Vec<TraceStatus>),
}

/// What an agent does, and what teiji has changed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FullStatus {
    /// What the agent does.
    pub agent: AgentStatus,
    /// What teiji has changed.
    pub status: Status,
    /// Links with channels.
    pub links: LinksStatus,
}

/// Why an agent does not do what it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum Refusal {
    /// The request has another version.
    #[error(
        "the agent answers requests of version {0} only: it is of another release of teiji, so restart it: `systemctl restart teiji-agent`"
    )]
    Version(u32),
    /// The agent does not know the order.
    #[error(
        "the agent does not know this request ({0}): it is of another release of teiji, so restart it: `systemctl restart teiji-agent`"
    )]
    Unknown(String),
    /// The answer is not one to the request.
    #[error(
        "the agent has answered something else than it was asked for: restart it: `systemctl restart teiji-agent`"
    )]
    Unexpected,
    /// Only user 0 may change anything.
    #[error("only root may do this; run it with sudo")]
    NotRoot,
    /// Too many requests at once.
    #[error("the agent answers many other requests now; try again")]
    Busy,
    /// The part of the agent that answers does not do so now.
    #[error("the agent does not answer in time: see its log")]
    Silent,
    /// It was tried, and failed.
    #[error("{0}")]
    Failed(String),
}

/// An order on its way from the front to the privileged part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Numbered<T> {
    /// The number that the answer has as well.
    pub number: u64,
    /// The order or its answer.
    pub content: T,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_read_as_they_are_written() {
        for order in [Order::Status, Order::Traces, Order::StopTrace(7), Order::RemoveTrace(7)] {
            let text = serde_json::to_string(&order).unwrap();
            assert_eq!(serde_json::from_str::<Order>(&text).unwrap(), order);
            assert_eq!(order.changes(), !matches!(order, Order::Status | Order::Traces));
        }
        assert_eq!(serde_json::to_string(&Order::StopTrace(7)).unwrap(), r#"{"stop-trace":7}"#);
        // What changes settings is no order: the command does it, not whoever has taken over the front.
        for other in [
            r#""shutdown""#,
            r#""reconcile""#,
            r#""confirm""#,
            r#"{"rollback":{"force":true}}"#,
            r#"{"stop-trace":"/"}"#,
            "7",
        ] {
            assert!(serde_json::from_str::<Order>(other).is_err(), "{other}");
        }
    }
}
