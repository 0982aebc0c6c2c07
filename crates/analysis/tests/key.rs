//! Requests that some bytes of their payload identify.

mod common;

use common::*;
use teiji_model::event::Role;
use teiji_model::flow::{Key, Matching};
use teiji_model::report::{Outcome, Reason};

fn matching() -> Matching {
    Matching::Key(Key::new(0, 2).expect("two bytes are a key"))
}

#[test]
fn responses_in_any_order_answer_the_requests_that_they_identify() {
    let [a, b] = [1, 2].map(|key| m(key, Role::Either));
    let mut h = History::default();
    h.request(0, 1, a).request(1_000_000, 2, b);
    h.response(2_000_000, 3, b).response(3_000_000, 4, a);
    // The identifier is used again.
    h.request(4_000_000, 5, a).response(5_000_000, 6, a);
    let o = run(&meta(matching()), &h.0);
    assert_eq!(o.counts(), [3, 3, 0, 0, 0], "{:?}", o.report.vms[0].left_out);
    let times: Vec<_> = o.joined.iter().map(|j| (j.request.start - T, j.request.total)).collect();
    assert_eq!(times, [(1_000_000, 1_040_000), (0, 3_040_000), (4_000_000, 1_040_000)]);
}

#[test]
fn two_requests_with_one_identifier_are_not_told_apart() {
    let a = m(1, Role::Either);
    let mut h = History::default();
    h.request(0, 1, a).request(1_000_000, 2, a).response(2_000_000, 3, a).response(3_000_000, 4, a);
    let o = run(&meta(matching()), &h.0);
    assert_eq!((o.counts(), o.reason()), ([2, 0, 0, 2, 0], (Outcome::Ambiguous, Reason::SameKey)));
}

#[test]
fn what_a_guest_asks_is_no_request_to_it() {
    let a = m(1, Role::Either);
    let mut h = History::default();
    h.response(0, 1, a).request(1_000_000, 2, a);
    assert_eq!(run(&meta(matching()), &h.0).counts(), [0; 5]);
}
