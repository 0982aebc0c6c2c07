//! What an agent does: the policy that it keeps, and what is not as that policy asks for.

use super::status::age;
use crate::terminal::{Style, Tone, printable, wrap};
use crate::units;
use teiji_model::status::AgentStatus;

/// As text of at most 100 columns; `now` in seconds since 1970. `silent`: why an agent that is there does not answer.
pub fn table(agent: Option<&AgentStatus>, silent: Option<&str>, now: u64, style: &Style) -> String {
    let mut out = String::new();
    let mut paragraph = |tone, text: &str| {
        for (n, line) in wrap(&style.ascii(&printable(text)), 96).iter().enumerate() {
            out += &format!("{}{}\n", if n > 0 { "    " } else { "" }, style.paint(tone, line));
        }
    };
    if let Some(why) = silent {
        paragraph(Tone::Bad, why);
    }
    let Some(agent) = agent else { return out };
    let kept = match agent.policy_since {
        None => "there is no policy in force: `teiji apply` puts one in force".to_owned(),
        Some(since) => format!(
            "keeps the policy in force ({}), applied {} ago",
            agent.policy.join(", "),
            age(now, since)
        ),
    };
    paragraph(Tone::Strong, &format!("agent (pid {}) {kept}", agent.pid));
    let looked = agent.looked.map_or_else(
        || "it has not compared the host with the policy yet".to_owned(),
        |at| {
            format!(
                "last compared with the host {} ago; {} changed since it started {} ago",
                age(now, at),
                units::count(agent.changed, "setting"),
                age(now, agent.started)
            )
        },
    );
    paragraph(Tone::Faint, &format!("  {looked}"));
    for absent in &agent.absent {
        paragraph(Tone::Faint, &format!("  not here now: {absent}"));
    }
    for blind in &agent.blind {
        paragraph(Tone::Faint, &format!("  noticed later than at once: {blind}"));
    }
    for problem in &agent.problems {
        paragraph(Tone::Bad, &format!("  {problem}"));
    }
    out
}
