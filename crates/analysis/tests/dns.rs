//! Queries of DNS: one that is repeated is no further request, and what a guest asks is none to it.

mod common;

use common::*;
use teiji_model::event::Role;
use teiji_model::flow::Matching;

#[test]
fn a_question_that_is_sent_again_is_no_further_request() {
    let (query, response) = (m(7, Role::Request), m(7, Role::Final));
    let mut h = History::default();
    h.request(0, 1, query).request(1_000_000, 2, query).response(2_000_000, 3, response);
    // Both copies are answered, and a third one comes late.
    h.response(3_000_000, 4, response).request(4_000_000, 5, query).response(5_000_000, 6, response);
    let o = run(&meta(Matching::Dns), &h.0);
    assert_eq!(o.counts(), [1, 1, 0, 0, 0], "{:?}", o.report.vms[0].left_out);
    assert_eq!(o.report.vms[0].requests.retransmitted, 2);
    // The first copy, up to the first response.
    assert_eq!((o.joined[0].request.start, o.joined[0].request.total), (T, 2_040_000));
    // As an echo it would be told from no other request with its key.
    assert_eq!(run(&meta(Matching::Echo), &h.0).report.vms[0].requests.retransmitted, 0);
}

#[test]
fn what_a_guest_asks_is_no_request_to_it() {
    let mut h = History::default();
    h.response(0, 1, m(7, Role::Request)).request(1_000_000, 2, m(7, Role::Final));
    let o = run(&meta(Matching::Dns), &h.0);
    assert_eq!(o.counts(), [0; 5]);
}
