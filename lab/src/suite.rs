//! Tests that share what is slow to make, such as a boot of the lab: each has its own name and its own result, they run
//! one after the other in the order of their list, and one that fails does not keep the next from running.
//!
//! A test file of that kind is a program of its own (`harness = false` in the manifest):
//!
//! ```no_run
//! use std::process::ExitCode;
//! use teiji_lab::suite::{self, Shared};
//! use teiji_lab::{Guest, GuestSpec, Host, Spec};
//!
//! // Made when the first test needs it. What could not be made fails each test that needs it, with the reason.
//! static LAB: Shared<Host> = Shared::new("the lab", || Host::boot(&Spec::default()).unwrap());
//! static VM: Shared<Guest<'static>> = Shared::new("vm1", || LAB.guest(&GuestSpec::named("vm1")).unwrap());
//!
//! fn main() -> ExitCode {
//!     suite::run(&teiji_lab::tests![the_host_answers, the_guest_answers], || LAB.if_made(Host::end))
//! }
//!
//! fn the_host_answers() {
//!     LAB.run("true").unwrap().ok().unwrap();
//! }
//!
//! fn the_guest_answers() {
//!     VM.run("true").unwrap().ok().unwrap();
//! }
//! ```
//!
//! `cargo test --test NAME -- the_guest` runs those whose names contain that, `-- --list` lists them.

use std::{
    any::Any,
    ops::Deref,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::OnceLock,
    time::Instant,
};

use libtest_mimic::{Arguments, Failed, Trial};

/// A test: its name and what it runs, which panics if it fails.
pub type Test = (&'static str, fn());

/// The list of tests that these functions are, each by its name.
#[macro_export]
macro_rules! tests {
    ($($test:path),+ $(,)?) => {
        [$((stringify!($test), $test as fn())),+]
    };
}

/// Runs the tests that the command line names (all, if it names none), one after the other, then `end`, whatever came
/// of them. The exit code says whether all passed.
pub fn run(tests: &[Test], end: fn()) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let trials = tests.iter().map(|&(name, test)| Trial::test(name, move || attempt(name, test))).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let ended = catch_unwind(end);
    if ended.is_err() {
        eprintln!("the tests' end failed: see above");
    }
    if conclusion.has_failed() || ended.is_err() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn attempt(name: &str, test: fn()) -> Result<(), Failed> {
    let begun = Instant::now();
    let result = catch_unwind(test);
    eprintln!("lab {:6.1} s  {name}", begun.elapsed().as_secs_f64());
    result.map_err(|panic| reason(panic.as_ref()).into())
}

/// What a panic says.
fn reason(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
}

/// What several tests use, made when the first of them needs it. It lives until the program ends.
pub struct Shared<T> {
    name: &'static str,
    make: fn() -> T,
    made: OnceLock<Result<T, String>>,
}

impl<T> Shared<T> {
    /// What `make` makes; it panics if it cannot.
    pub const fn new(name: &'static str, make: fn() -> T) -> Shared<T> {
        Shared { name, make, made: OnceLock::new() }
    }

    /// It, or why it could not be made.
    ///
    /// # Errors
    /// The same reason each time: it is tried once.
    pub fn get(&self) -> Result<&T, &str> {
        let make = || catch_unwind(AssertUnwindSafe(self.make)).map_err(|panic| reason(panic.as_ref()));
        self.made.get_or_init(make).as_ref().map_err(String::as_str)
    }

    /// Has `act` done with it if it has been made.
    pub fn if_made(&self, act: impl FnOnce(&T)) {
        if let Some(Ok(made)) = self.made.get() {
            act(made);
        }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    /// Panics if it could not be made.
    fn deref(&self) -> &T {
        match self.get() {
            Ok(made) => made,
            Err(why) => {
                panic!("without {}, which could not be made, this cannot be tested: {why}", self.name)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn what_is_shared_is_made_once() {
        static MADE: AtomicU32 = AtomicU32::new(0);
        static SHARED: Shared<u32> = Shared::new("a number", || MADE.fetch_add(1, Ordering::Relaxed) + 7);
        SHARED.if_made(|_| panic!("made before it was needed"));
        assert_eq!((*SHARED, *SHARED, MADE.load(Ordering::Relaxed)), (7, 7, 1));
        let mut seen = 0;
        SHARED.if_made(|n| seen = *n);
        assert_eq!(seen, 7);
    }

    #[test]
    fn what_cannot_be_made_is_tried_once_and_says_why_each_time() {
        static TRIED: AtomicU32 = AtomicU32::new(0);
        static SHARED: Shared<u32> =
            Shared::new("a number", || panic!("attempt {}", TRIED.fetch_add(1, Ordering::Relaxed)));
        for _ in 0..2 {
            assert_eq!(SHARED.get().unwrap_err(), "attempt 0");
            let said = catch_unwind(|| *SHARED).unwrap_err();
            assert!(
                reason(said.as_ref()).contains("a number, which could not be made"),
                "{}",
                reason(said.as_ref())
            );
        }
        SHARED.if_made(|_| panic!("it was not made"));
    }
}
