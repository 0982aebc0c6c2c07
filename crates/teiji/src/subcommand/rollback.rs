//! `teiji rollback`: restores everything, or cleans up after a teiji that was killed.

use super::messages::{print_line, print_messages};
use crate::args::Rollback;
use anyhow::{Result, bail};
use teiji_agent::apply::{self, Message};
use teiji_agent::service::Service;
use teiji_render::units;

/// Restores everything, or cleans up after a teiji that was killed.
pub(super) fn run(args: &Rollback, service: &Service) -> Result<()> {
    let wait = args.wait.unwrap_or_default();
    if args.unfinished {
        let messages = service.recover_from_kill(wait)?;
        print_messages(&messages);
        if messages.is_empty() {
            print_line("nothing was left unfinished");
        }
        return Ok(());
    }
    let done = service.rollback(&apply::Rollback { force: args.force, wait })?;
    print_messages(&done.messages);
    print_line(&match done.restored {
        0 => "nothing to restore; no policy is in force".to_owned(),
        n => format!("restored: {}", units::count(n as u64, "setting")),
    });
    if done.messages.iter().any(|n| matches!(n, Message::Foreign { .. })) {
        bail!(
            "settings that someone else has changed were left alone; `teiji rollback --force` restores them, too"
        );
    }
    Ok(())
}
