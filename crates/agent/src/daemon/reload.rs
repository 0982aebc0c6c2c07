//! Looks at the host that SIGHUP asks for (`systemctl reload`): one at a time, however often it is sent.

use super::reconciler::Reconciler;
use sd_notify::NotifyState;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;

/// The look that is in progress.
#[derive(Default)]
pub(super) struct Reload(Arc<Mutex<State>>);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    AtRest,
    Busy,
    /// It has been asked for again since the look began, which may therefore have missed the reason.
    BusyAndWantedAgain,
}

impl Reload {
    /// Begins a look, or has the one that is in progress followed by another one.
    pub(super) fn ask(&self, reconciler: &Arc<Reconciler>) {
        let reconciler = Arc::clone(reconciler);
        self.ask_for(move || {
            if let Err(why) = reconciler.reconcile_now() {
                tracing::warn!("{why}");
            }
        });
    }

    fn ask_for(&self, look: impl Fn() + Send + 'static) {
        // systemd is told with the lock held: so it hears the end of the last look last.
        let mut state = locked(&self.0);
        if let Ok(now) = NotifyState::monotonic_usec_now() {
            let _ = sd_notify::notify(&[NotifyState::Reloading, now]);
        }
        if *state != State::AtRest {
            *state = State::BusyAndWantedAgain;
            return;
        }
        let shared = Arc::clone(&self.0);
        let work = move || {
            loop {
                look();
                let mut state = locked(&shared);
                if *state != State::BusyAndWantedAgain {
                    return rest(&mut state);
                }
                *state = State::Busy;
            }
        };
        match Builder::new().name("reload".into()).spawn(work) {
            Ok(_) => *state = State::Busy,
            Err(why) => {
                tracing::error!(
                    "cannot start a thread, so the host is not compared with the policy now: {why}"
                );
                rest(&mut state);
            }
        }
    }
}

fn rest(state: &mut State) {
    *state = State::AtRest;
    let _ = sd_notify::notify(&[NotifyState::Ready]);
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn however_often_it_is_asked_for_one_look_follows_the_one_in_progress() {
        let reload = Reload::default();
        let (begin, begun) = mpsc::channel();
        let (allow, allowed) = mpsc::channel::<()>();
        let allowed = Arc::new(Mutex::new(allowed));
        let ask = |begin: &mpsc::Sender<()>| {
            let (begin, allowed) = (begin.clone(), Arc::clone(&allowed));
            reload.ask_for(move || {
                begin.send(()).unwrap();
                allowed.lock().unwrap().recv().unwrap();
            });
        };
        ask(&begin);
        begun.recv().unwrap();
        for _ in 0..1000 {
            ask(&begin);
        }
        // Looks that were in progress at the same time would all have been allowed to end.
        for _ in 0..2000 {
            allow.send(()).unwrap();
        }
        drop(begin);
        // Until the last thread has ended, and with it the last sender.
        assert_eq!(begun.iter().count(), 1, "one more");

        assert_eq!(*locked(&reload.0), State::AtRest);

        let (begin, begun) = mpsc::channel();
        ask(&begin);
        drop(begin);
        assert_eq!(begun.iter().count(), 1, "it can be asked for later");
    }
}
