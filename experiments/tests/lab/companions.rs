//! The processes beside a trace that keep some privileges: it goes on without them, and says what is missing.

use super::{ECHO, LAB, echo, vm1};
use std::time::Duration;
use teiji_experiments::path::only;
use teiji_model::report::Report;

const SOON: Duration = Duration::from_secs(120);

/// Without `teiji-follow` the VMs that were there are traced on; without `teiji-rename` the recording keeps the name of an unfinished
/// one, and the report is whole.
pub fn a_trace_goes_on_without_its_companions() {
    vm1();
    // The report goes to a file that is open already: only the recording needs a name.
    let command = format!(
        "cd /tmp; rm -f alone.*; exec /mnt/bin/teiji trace {ECHO} --json --record alone.teiji 2>&1 >alone.json"
    );
    let trace = LAB.host.spawn(&command).unwrap();
    trace.wait_for("tracing,", SOON).unwrap();
    let run = |sh: &str| LAB.host.run(sh).unwrap().ok().unwrap();
    let kill = format!(
        "for p in $(cat /proc/{}/task/*/children); do name=$(cat /proc/$p/comm); kill -9 $p && echo $name; done | sort",
        trace.id().unwrap()
    );
    assert_eq!(run(&kill), "teiji-follow\nteiji-rename");
    trace.wait_for("VMs that come or change from now on are not followed", SOON).unwrap();
    let called = echo(vm1(), 50.0, 100);
    // In this time teiji takes in what is in the kernel's buffer and in the window of the analysis.
    std::thread::sleep(Duration::from_secs(1));
    run(&format!("kill -INT {}", trace.id().unwrap()));
    let ended = trace.wait().unwrap();
    let said = ended.text();
    assert_eq!(ended.code, 1, "{said}");
    assert!(
        said.contains("alone.teiji") && said.contains("the process that was to name the file was killed"),
        "{said}"
    );
    let report: Report = serde_json::from_str(&run("cat /tmp/alone.json")).unwrap();
    let counts = only(&report).unwrap().requests;
    assert!(counts.complete > 0 && counts.complete <= *called.answered().end(), "{counts:?} {called:?}");
    let left = run("cd /tmp; ls alone.*; rm -f alone.*");
    let left: Vec<&str> = left.lines().collect();
    assert!(left.len() == 2 && left[0] == "alone.json" && left[1].ends_with(".partial"), "{left:?}");
}
