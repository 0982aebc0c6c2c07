//! Tests that share what takes long to make, such as a boot of the lab. Each test has its own name and result; they run
//! one after the other in the order of their list, and a test that fails does not stop the next ones.
//!
//! Such a test file is a separate program (`harness = false` in the manifest):
//!
//! ```no_run
//! use std::process::ExitCode;
//! use teiji_lab::harness::{self, Shared};
//! use teiji_lab::{Guest, GuestSpec, LabHost, Spec};
//!
//! // Made when the first test needs it. If it cannot be made, each test that needs it fails with the reason.
//! static LAB: Shared<LabHost> = Shared::new("the lab", || LabHost::boot(&Spec::default()).unwrap());
//! static VM: Shared<Guest<'static>> = Shared::new("vm1", || LAB.guest(&GuestSpec::named("vm1")).unwrap());
//!
//! fn main() -> ExitCode {
//!     harness::run(&teiji_lab::tests![the_host_answers, the_guest_answers], || LAB.if_made(LabHost::end))
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
//! Three failures are not results of a test: the emulator fails (QEMU that translates nested virtualisation does so about once in
//! sixty boots), a nested guest fails with it, or an emulated CPU stands still for seconds. Then everything shared is made again,
//! and the test starts again. This is reported, and done only once for each test, so that a test which ends the lab host each time
//! fails, and only a few times in a program, so that a fault which is frequent does not stay hidden.
//!
//! A lab host that ends by itself in another way is such a result: its kernel panicked, or it powered off. The program
//! fails, even if no test noticed it. [`crate::ends`] tells the two apart. The last lines of a program say how many lab
//! hosts were replaced, how many ended by themselves, and why.
//!
//! `cargo test --test NAME -- the_guest` runs the tests whose names contain `the_guest`; `-- --list` lists all tests.

use std::{
    any::Any,
    ops::Deref,
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Instant,
};

use libtest_mimic::{Arguments, Failed, Trial};

use crate::ends;

/// How many times the shared values were given up because the emulated machine had failed.
static GIVEN_UP: AtomicU32 = AtomicU32::new(0);
/// How many times that may happen in a program; a test begins again once.
const GIVE_UP_LIMIT: u32 = 3;
/// How many emulators had failed when the present lab host took the place of another: their failures are over. This is not
/// [`GIVEN_UP`], which also counts nested guests that failed and CPUs that stood still.
static FAILED_BEFORE: AtomicUsize = AtomicUsize::new(0);

/// A test: its name, and the function that it runs, which panics if the test fails.
pub type Test = (&'static str, fn());

/// The list of these tests, each with the function's name.
#[macro_export]
macro_rules! tests {
    ($($test:path),+ $(,)?) => {
        [$((stringify!($test), $test as fn())),+]
    };
}

/// Runs the tests that the command line names (all, if it names none), one after the other, and then `end`, whatever
/// the results. The exit code says whether all have passed.
pub fn run(tests: &[Test], end: fn()) -> ExitCode {
    let mut arguments = Arguments::from_args();
    let lists = arguments.list;
    arguments.test_threads = Some(1);
    let trials = tests
        .iter()
        .map(|&(name, test)| {
            let within = || Within { guests: ends::guest_failures(), standstills: ends::standstills() };
            Trial::test(name, move || attempt(name, test, ends::failures, within, end))
        })
        .collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    let ended = catch_unwind(end);
    if ended.is_err() {
        eprintln!("the tests' end failed: see above");
    }
    if !lists {
        for line in ends::summary() {
            eprintln!("lab           {line}");
        }
    }
    let failed = conclusion.has_failed() || ended.is_err() || ends::any_by_itself();
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What has failed within the present lab host.
struct Within {
    /// Why nested guests have failed.
    guests: Vec<String>,
    /// CPUs that stood still.
    standstills: Vec<String>,
}

/// Runs a test, and runs it again if it failed together with the emulated machine. `hosts` returns why lab hosts have
/// failed so far; `end` ends the lab host: a process can have only one.
fn attempt(
    name: &str,
    test: fn(),
    hosts: impl Fn() -> Vec<String>,
    within: impl Fn() -> Within,
    end: fn(),
) -> Result<(), Failed> {
    let begun = Instant::now();
    let before = within();
    let mut told = before.standstills.len();
    let mut result = catch_unwind(test);
    let given_up = GIVEN_UP.load(Ordering::Relaxed);
    // A lab host that has ended makes every later test fail; the others only the one in which they happened.
    let failed = || {
        let host = hosts().into_iter().nth(FAILED_BEFORE.load(Ordering::Relaxed));
        let of_test = || {
            let Within { guests, standstills } = within();
            let guest = guests.into_iter().nth(before.guests.len());
            guest.or_else(|| standstills.into_iter().nth(before.standstills.len()))
        };
        host.or_else(of_test)
    };
    if let Err(panic) = &result
        && given_up < GIVE_UP_LIMIT
        && let Some(failure) = failed()
    {
        let why = reason(panic.as_ref());
        eprintln!("lab          {name}: {failure}, so another lab host is booted for it ({why})");
        ends::replaced(format!("in the test {name}: {failure}"));
        if catch_unwind(end).is_err() {
            eprintln!("lab          the lab host could not be ended: see above");
        }
        GIVEN_UP.store(given_up + 1, Ordering::Relaxed);
        FAILED_BEFORE.store(hosts().len(), Ordering::Relaxed);
        // The standstills that are known from here on are those of the other lab host.
        told = 0;
        result = catch_unwind(test);
    }
    for what in within().standstills.iter().skip(told) {
        eprintln!("lab          {what}");
    }
    eprintln!("lab {:6.1} s  {name}", begun.elapsed().as_secs_f64());
    result.map_err(|panic| reason(panic.as_ref()).into())
}

/// The message of a panic.
fn reason(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it panicked").to_owned()
}

/// A value that several tests use; it is made when the first of them needs it. It lives until the program ends, even if
/// it was given up and made again.
pub struct Shared<T: 'static> {
    name: &'static str,
    make: fn() -> T,
    made: Mutex<Option<Made<T>>>,
}

struct Made<T: 'static> {
    /// The value of [`GIVEN_UP`] when it was made.
    given_up: u32,
    result: &'static Result<T, String>,
}

impl<T> Shared<T> {
    /// A value that `make` makes; `make` panics if it cannot.
    pub const fn new(name: &'static str, make: fn() -> T) -> Shared<T> {
        Shared { name, make, made: Mutex::new(None) }
    }

    /// The value, or why it could not be made.
    ///
    /// # Errors
    /// The same reason each time: making it is tried once.
    pub fn get(&self) -> Result<&'static T, &'static str> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let given_up = GIVEN_UP.load(Ordering::Relaxed);
        let result = match &*made {
            Some(made) if made.given_up == given_up => made.result,
            _ => {
                let result =
                    catch_unwind(AssertUnwindSafe(self.make)).map_err(|panic| reason(panic.as_ref()));
                let result: &'static _ = Box::leak(Box::new(result));
                *made = Some(Made { given_up, result });
                result
            }
        };
        result.as_ref().map_err(String::as_str)
    }

    /// Calls `act` with the value, if it has been made.
    pub fn if_made(&self, act: impl FnOnce(&T)) {
        if let Some(Made { result: Ok(made), .. }) =
            &*self.made.lock().unwrap_or_else(PoisonError::into_inner)
        {
            act(made);
        }
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    /// Panics if the value could not be made.
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

    /// Lets the test of values that are made once and that of values that are made again run one after the other.
    static ONE: Mutex<()> = Mutex::new(());

    #[test]
    fn what_is_shared_is_made_once() {
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
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
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        static TRIED: AtomicU32 = AtomicU32::new(0);
        static SHARED: Shared<u32> =
            Shared::new("a number", || panic!("attempt {}", TRIED.fetch_add(1, Ordering::Relaxed)));
        for _ in 0..2 {
            assert_eq!(SHARED.get().unwrap_err(), "attempt 0");
            let printed = catch_unwind(|| *SHARED).unwrap_err();
            assert!(
                reason(printed.as_ref()).contains("a number, which could not be made"),
                "{}",
                reason(printed.as_ref())
            );
        }
        SHARED.if_made(|_| panic!("it was not made"));
    }

    /// If the emulator has failed, a test starts again with another lab host, once, and a few tests in a program do; a test
    /// that fails by itself does not.
    #[test]
    fn a_failed_emulator_is_no_tests_result_but_only_once() {
        static MADE: AtomicU32 = AtomicU32::new(0);
        static RUNS: AtomicU32 = AtomicU32::new(0);
        static LAB: Shared<u32> = Shared::new("the lab", || MADE.fetch_add(1, Ordering::Relaxed));
        let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let runs = || RUNS.swap(0, Ordering::Relaxed);
        let in_the_second = || {
            RUNS.fetch_add(1, Ordering::Relaxed);
            assert!(*LAB == 1, "in lab host {}", *LAB);
        };
        let never = || {
            RUNS.fetch_add(1, Ordering::Relaxed);
            panic!("in lab host {}", *LAB);
        };
        let why = |result: Result<(), Failed>| result.unwrap_err().message().unwrap_or_default().to_owned();

        static ENDED: AtomicU32 = AtomicU32::new(0);
        let end = || {
            ENDED.fetch_add(1, Ordering::Relaxed);
        };
        let failed = |times: usize| move || vec![String::from("the emulator was killed"); times];
        let within = |guests, standstills| Within { guests, standstills };
        let before = |times: usize| move || within(vec![String::from("KVM stopped vm1"); times], Vec::new());
        assert_eq!(
            (why(attempt("a", in_the_second, failed(0), before(0), end)), runs()),
            ("in lab host 0".into(), 1)
        );
        // A guest that had failed before the test.
        assert_eq!(
            (why(attempt("a", in_the_second, failed(0), before(3), end)), runs()),
            ("in lab host 0".into(), 1)
        );
        assert_eq!(ENDED.load(Ordering::Relaxed), 0);
        // One that fails in it: the lab host still runs, and another one can only be booted after it has ended.
        let in_it = |what: &str| vec![what.to_owned(); RUNS.load(Ordering::Relaxed) as usize];
        let guests = || within(in_it("KVM stopped vm1"), Vec::new());
        attempt("b", in_the_second, failed(0), guests, end).unwrap();
        assert_eq!((runs(), ENDED.load(Ordering::Relaxed)), (2, 1));
        // A test begins again only once, though a CPU stood still the second time, too.
        let standstills = || within(Vec::new(), in_it("CPU 2 stood still"));
        attempt("b", never, failed(0), standstills, end).unwrap_err();
        assert_eq!((runs(), ENDED.load(Ordering::Relaxed)), (2, 2));
        // The first emulator that fails, after two lab hosts were given up for other reasons.
        attempt("b", never, failed(1), before(0), end).unwrap_err();
        assert_eq!((runs(), ENDED.load(Ordering::Relaxed)), (2, 3));
        let replaced = ends::summary();
        for failure in ["the emulator was killed", "KVM stopped vm1", "CPU 2 stood still"] {
            assert!(replaced.contains(&format!("  in the test b: {failure}")), "{replaced:?}");
        }
        // A failure that was counted before does not count again.
        GIVEN_UP.store(0, Ordering::Relaxed);
        let now = *LAB;
        assert_eq!(
            (why(attempt("c", never, failed(1), before(0), end)), runs()),
            (format!("in lab host {now}"), 1)
        );
        // When the program has given up as many as it may, no other one is excused.
        GIVEN_UP.store(GIVE_UP_LIMIT, Ordering::Relaxed);
        for failures in [1, 2] {
            let now = *LAB;
            assert_eq!(
                (why(attempt("c", never, failed(failures), guests, end)), runs()),
                (format!("in lab host {now}"), 1)
            );
        }
    }
}
