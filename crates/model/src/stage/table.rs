//! The table of stages. Text, HTML, terminal and Perfetto output read it, so that a stage is described and shown in the
//! same way everywhere.

use super::{Actor, Stage};

/// What a stage means, and how it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct About {
    /// The stage.
    pub stage: Stage,
    /// Its name in every output, including JSON.
    pub name: &'static str,
    /// Its letter, where a stage has only one column.
    pub letter: char,
    /// The instants at which it begins and ends.
    pub meaning: &'static str,
    /// What makes it long.
    pub explanation: &'static str,
    /// The kind of thread whose states divide its time, if any.
    pub actor: Option<Actor>,
    /// The track that it is shown on in a view with tracks.
    pub track: Track,
    /// Its colour.
    pub colour: Colour,
}

/// What carries a stage. Tracks are shown in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Track {
    /// The host's receive path.
    Receive,
    /// The vhost worker.
    Worker,
    /// The vCPU that took the interrupt.
    Vcpu,
    /// The host's transmit path.
    Transmit,
    /// Not known.
    Unattributed,
}

impl Track {
    /// The name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Track::Receive => "host receive path",
            Track::Worker => "vhost worker",
            Track::Vcpu => "vCPU",
            Track::Transmit => "host transmit path",
            Track::Unattributed => "unattributed",
        }
    }
}

/// The colour of a stage: all stages are distinct from each other, and readable on the background.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Colour {
    /// On a light background, 0xRRGGBB.
    pub light: u32,
    /// On a dark background, 0xRRGGBB.
    pub dark: u32,
    /// In the 256-colour palette of terminals, on any background.
    pub terminal: u8,
}

const fn colour(light: u32, dark: u32, terminal: u8) -> Colour {
    Colour { light, dark, terminal }
}

/// All stages, in path order.
pub static TABLE: [About; Stage::COUNT] = [
    About {
        stage: Stage::SwitchIn,
        name: "switch_in",
        letter: 's',
        meaning: "received by the host → put on the tap",
        explanation: "bridge, Open vSwitch, firewall rules, softirqs that come late",
        actor: None,
        track: Track::Receive,
        colour: colour(0x4e79a7, 0x6b9bd1, 67),
    },
    About {
        stage: Stage::TapQueue,
        name: "tap_queue",
        letter: 'q',
        meaning: "on the tap → taken by the vhost worker",
        explanation: "the worker sleeps, waits for a CPU, or is busy with earlier packets",
        actor: Some(Actor::Worker),
        track: Track::Worker,
        colour: colour(0xe08a1e, 0xf0a24a, 172),
    },
    About {
        stage: Stage::VhostRx,
        name: "vhost_rx",
        letter: 'r',
        meaning: "taken → written to the guest's ring and signalled",
        explanation: "the copy, a ring that is full",
        actor: None,
        track: Track::Worker,
        colour: colour(0x9c755f, 0xb9937e, 137),
    },
    About {
        stage: Stage::Irq,
        name: "irq",
        letter: 'i',
        meaning: "signalled → interrupt accepted for a vCPU",
        explanation: "irqfd and the route of the MSI",
        actor: None,
        track: Track::Vcpu,
        colour: colour(0xb05fb0, 0xc987c9, 133),
    },
    About {
        stage: Stage::VcpuWake,
        name: "vcpu_wake",
        letter: 'w',
        meaning: "accepted → the vCPU enters guest mode with it",
        explanation: "the vCPU is halted, waits for a CPU, or is in a long exit; also each later wait until it is back \
                      on a CPU",
        actor: Some(Actor::Vcpu),
        track: Track::Vcpu,
        colour: colour(0xd1495b, 0xef7183, 167),
    },
    About {
        stage: Stage::Guest,
        name: "guest",
        letter: 'g',
        meaning: "guest entry → the guest kicks its transmit queue",
        explanation: "the guest's interrupt handler, network stack and service",
        actor: Some(Actor::Vcpu),
        track: Track::Vcpu,
        colour: colour(0x59a14f, 0x7bc271, 71),
    },
    About {
        stage: Stage::VhostTx,
        name: "vhost_tx",
        letter: 't',
        meaning: "kick → frame handed to the host stack by the vhost worker",
        explanation: "the worker sleeps, waits for a CPU, or is busy with earlier packets",
        actor: Some(Actor::Worker),
        track: Track::Worker,
        colour: colour(0xc8a415, 0xdfc04a, 178),
    },
    About {
        stage: Stage::SwitchOut,
        name: "switch_out",
        letter: 'o',
        meaning: "host stack → queued on the link",
        explanation: "bridge, Open vSwitch, firewall rules",
        actor: None,
        track: Track::Transmit,
        colour: colour(0x2f9e9e, 0x54bcbc, 73),
    },
    About {
        stage: Stage::Qdisc,
        name: "qdisc",
        letter: 'd',
        meaning: "queued → dequeued from the link's qdisc",
        explanation: "what else leaves by the link, and the qdisc's order",
        actor: None,
        track: Track::Transmit,
        colour: colour(0x8f7fc4, 0xab9ddb, 103),
    },
    About {
        stage: Stage::WireOut,
        name: "wire_out",
        letter: 'x',
        meaning: "dequeued → handed to the NIC",
        explanation: "the driver, and packet sockets before it",
        actor: None,
        track: Track::Transmit,
        colour: colour(0x5b8f7b, 0x7fb39f, 66),
    },
    About {
        stage: Stage::Unattributed,
        name: "unattributed",
        letter: '?',
        meaning: "what no stage accounts for",
        explanation: "at most 1 % by design",
        actor: None,
        track: Track::Unattributed,
        colour: colour(0x8b949e, 0xa4adb6, 244),
    },
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_table_has_each_stage_at_its_place_and_tells_them_apart() {
        let mut seen = [const { BTreeSet::new() }; 5];
        for (stage, about) in Stage::ALL.into_iter().zip(&TABLE) {
            assert_eq!((about.stage, stage.about()), (stage, about));
            let c = about.colour;
            let distinct = [
                about.name.to_owned(),
                about.letter.to_string(),
                c.light.to_string(),
                c.dark.to_string(),
                c.terminal.to_string(),
            ];
            for (seen, value) in seen.iter_mut().zip(distinct) {
                assert!(seen.insert(value), "{about:?}");
            }
            assert!(c.light <= 0xff_ffff && c.dark <= 0xff_ffff);
            assert!(about.letter.is_ascii() && !about.meaning.is_empty() && !about.explanation.is_empty());
            assert_eq!(serde_json::to_value(stage).unwrap(), about.name);
        }
    }

    #[test]
    fn architecture_has_the_same_table() {
        let text = include_str!("../../../../ARCHITECTURE.md");
        for about in &TABLE {
            let line = format!("| `{}` | {} | {} |\n", about.name, about.meaning, about.explanation);
            assert!(text.contains(&line), "missing in ARCHITECTURE.md: {line}");
        }
    }
}
