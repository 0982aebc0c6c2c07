//! The priority of what a process of high priority starts: it is that of any program again.
//!
//! A child inherits the nice value of the thread that starts it, and the value that keeps its parent from being ended when
//! memory runs out.

use crate::root::Root;
use crate::sys;
use nix::unistd::gettid;
use std::io;

/// Gives the calling thread, and what it starts from now on, nice 0 if it had a higher priority.
///
/// # Errors
/// If the kernel refuses it.
pub fn ordinary_thread() -> io::Result<()> {
    if nice()? < 0 { set_nice(0) } else { Ok(()) }
}

fn nice() -> io::Result<i32> {
    Ok(sys::scheduling(gettid().as_raw() as u32)?.sched_nice)
}

fn set_nice(nice: i32) -> io::Result<()> {
    let thread = gettid().as_raw() as u32;
    Ok(sys::set_scheduling(thread, &libc::sched_attr { sched_nice: nice, ..sys::scheduling(thread)? })?)
}

/// Lets the kernel end this process as any other one if memory runs out.
///
/// # Errors
/// If the process is gone, or the kernel refuses it.
pub fn ordinary_memory(pid: u32) -> io::Result<()> {
    let file = format!("proc/{pid}/oom_score_adj");
    let root = Root::default();
    let score = root.text(&file).and_then(|text| text.trim().parse::<i32>().ok());
    if score.is_some_and(|score| score < 0) { std::fs::write(root.path(&file), "0") } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::task::Stat;
    use std::process::Command;

    /// Needs root.
    #[test]
    fn what_is_started_has_the_priority_of_any_program() {
        let work = || {
            set_nice(-5).unwrap();
            ordinary_thread().unwrap();
            let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
            let nice = Stat::read(&Root::default(), child.id()).and_then(|stat| stat.number::<i32>(19));
            let score = format!("/proc/{}/oom_score_adj", child.id());
            // Needs CAP_SYS_RESOURCE; without it nothing is spared that could be inherited.
            let _ = std::fs::write(&score, "-500");
            let done = ordinary_memory(child.id());
            let memory = std::fs::read_to_string(score);
            child.kill().unwrap();
            child.wait().unwrap();
            done.unwrap();
            (nice, memory.unwrap())
        };
        let (nice, memory) = std::thread::spawn(work).join().unwrap();
        assert_eq!((nice, memory.trim()), (Some(0), "0"));
    }

    #[test]
    fn a_lower_priority_stays() {
        let work = || {
            set_nice(7).unwrap();
            ordinary_thread().unwrap();
            nice().unwrap()
        };
        assert_eq!(std::thread::spawn(work).join().unwrap(), 7);
    }
}
