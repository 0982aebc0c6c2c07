//! What an agent does: the policy that it keeps, and what is not as that policy asks for.

use super::guarantees;
use super::status::age;
use crate::terminal::{Style, Tone, printable, wrap};
use crate::units;
use teiji_model::status::{AgentStatus, PacketVmStatus};

/// As text of at most 100 columns; `now` in seconds since 1970. `silent`: why an agent that is there does not answer;
/// `unkept`: the files of the policy in force, if there is no agent.
pub fn table(
    agent: Option<&AgentStatus>,
    silent: Option<&str>,
    unkept: Option<&[String]>,
    now: u64,
    style: &Style,
) -> String {
    let mut out = String::new();
    let mut paragraph = |indent: &str, tone, text: &str| {
        for (n, line) in wrap(&style.ascii(&printable(text)), 94).iter().enumerate() {
            out += &format!("{indent}{}{}\n", if n > 0 { "  " } else { "" }, style.paint(tone, line));
        }
    };
    if let Some(why) = silent {
        paragraph("", Tone::Bad, why);
    }
    if let Some(files) = unkept {
        let text = format!(
            "no agent runs, so VMs and links that come later do not get the settings of the policy in force ({}): `systemctl \
             start teiji-agent` starts one",
            files.join(", ")
        );
        paragraph("", Tone::Strong, &text);
    }
    let Some(agent) = agent else { return out };
    let kept = match agent.policy_since {
        _ if agent.policy_unknown => "it cannot read which policy is in force".to_owned(),
        None => "there is no policy in force; `teiji apply` puts one in force".to_owned(),
        Some(since) => format!(
            "it keeps the policy in force ({}), applied {} ago",
            agent.policy.join(", "),
            age(now, since)
        ),
    };
    paragraph("", Tone::Strong, &format!("agent (pid {}): {kept}", agent.pid));
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
    if agent.policy_since.is_some() {
        paragraph("  ", Tone::Faint, &looked);
    }
    for vm in &agent.packet_vms {
        paragraph("  ", Tone::Strong, &guarantees::packet_vm(&vm.name, &vm.class));
        paragraph("    ", Tone::Faint, &got(vm));
    }
    for absent in &agent.absent {
        paragraph("  ", Tone::Faint, &format!("not here now: {absent}"));
    }
    for blind in &agent.blind {
        paragraph(
            "  ",
            Tone::Faint,
            &format!("the kernel does not tell of {blind}; the agent looks every 1.5 s instead"),
        );
    }
    for problem in &agent.problems {
        paragraph("  ", Tone::Bad, problem);
    }
    out
}

/// What a VM has got since the scheduler was loaded. Waits are twice as long as the true ones at most.
fn got(vm: &PacketVmStatus) -> String {
    let wait = |share| vm.wait(share).map_or_else(|| "unknown".into(), |ns| units::duration(ns as f64));
    let overruns = 100.0 * vm.overruns as f64 / vm.turns.max(1) as f64;
    format!(
        "{}, {} expired; CPU time {} ahead of normal threads, {} by weight; wait for a CPU after a wake-up ≤ {} (median), ≤ {} \
         (99.9 %), {}; runtime used up in {}; {overruns:.1} % of the turns too long",
        units::count(vm.packets, "packet"),
        vm.expired,
        units::duration(vm.before_others as f64),
        units::duration(vm.by_weight as f64),
        wait(0.5),
        wait(0.999),
        units::count(vm.threads as u64, "thread"),
        units::count(vm.exhausted, "period"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use teiji_model::policy::PacketClass;

    #[test]
    fn what_matters_is_seen_at_a_glance() {
        let style = Style::PLAIN;
        assert_eq!(table(None, None, None, 0, &style), "");
        assert_eq!(table(None, Some("it is silent"), None, 0, &style), "it is silent\n");
        let unkept = table(None, None, Some(&["/etc/p.toml".into()]), 0, &style);
        assert!(unkept.starts_with("no agent runs") && unkept.contains("(/etc/p.toml)"), "{unkept}");
        let mut agent = AgentStatus { pid: 7, ..AgentStatus::default() };
        let text = table(Some(&agent), None, None, 100, &style);
        assert_eq!(text, "agent (pid 7): there is no policy in force; `teiji apply` puts one in force\n");
        (agent.policy, agent.policy_since, agent.looked) =
            (vec!["/etc/p\x1b.toml".into()], Some(40), Some(90));
        agent.problems = vec!["sip1: ".to_owned() + &"it cannot be changed ".repeat(8)];
        agent.absent = vec!["vm.sip2 (p:1:1): there is none".into()];
        let text = table(Some(&agent), None, None, 100, &style);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "agent (pid 7): it keeps the policy in force (/etc/p\\u{1b}.toml), applied 60 seconds ago"
        );
        assert!(
            lines[1].starts_with("  last compared with the host 10 seconds ago; 0 settings changed"),
            "{text}"
        );
        assert!(lines.contains(&"  not here now: vm.sip2 (p:1:1): there is none"), "{text}");
        agent.packet_vms = vec![PacketVmStatus {
            name: "sip1".into(),
            class: PacketClass { runtime: 2_000_000, deadline: 5_000_000, period: 10_000_000 },
            threads: 3,
            packets: 1,
            expired: 0,
            before_others: 3_000_000,
            by_weight: 0,
            exhausted: 2,
            turns: 9,
            overruns: 0,
            waits: [vec![0; 12], vec![3, 1]].concat(),
        }];
        let with_vm = table(Some(&agent), None, None, 100, &style);
        let vm = with_vm.find(
            "  sip1: packet deadline 5.00 ms; up to 2.00 ms of CPU in every 10.0 ms ahead of normal threads\n",
        );
        let rest: String = with_vm[vm.unwrap()..].split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            rest.contains(
                "wait for a CPU after a wake-up <= 8.19 us (median), <= 16.4 us (99.9 %), 3 threads"
            ),
            "{with_vm}"
        );
        let problem = lines.iter().position(|line| line.starts_with("  sip1: it cannot")).unwrap();
        assert!(lines[problem + 1].starts_with("    ") && lines.len() == problem + 2, "{text}");
        assert!(lines.iter().all(|line| line.len() <= 100), "{text}");
    }
}
