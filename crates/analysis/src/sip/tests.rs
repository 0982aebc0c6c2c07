use super::*;
use proptest::prelude::*;

const INVITE: &str = "INVITE sip:bob@b.example SIP/2.0\r\nVia: SIP/2.0/UDP pc33;branch=z9hG4bK776\r\n\
    To: Bob <sip:bob@b.example>\r\nFrom: Alice <sip:alice@a.example>;tag=1928301774\r\n\
    Call-ID: a84b4c76e66710@pc33\r\nCSeq: 314159 INVITE\r\n\r\nv=0\r\n";

fn read(text: &str) -> Option<Match> {
    parse(text.as_bytes(), 5)
}

#[test]
fn a_request_and_its_responses_have_one_key() {
    let request = read(INVITE).unwrap();
    assert_eq!((request.role, request.group_role), (Role::Request, GroupRole::Begins));
    assert_ne!(request.group, 0);
    let answer = INVITE.replace("INVITE sip:bob@b.example SIP/2.0", "SIP/2.0 200 OK");
    let answer = read(&answer.replace("b.example>\r", "b.example>;tag=a6c85cf\r")).unwrap();
    assert_eq!(answer, Match { role: Role::Final, ..request });
    let trying = read(&INVITE.replace("INVITE sip:bob@b.example SIP/2.0", "SIP/2.0 100 Trying")).unwrap();
    assert_eq!(trying, Match { role: Role::Trying, ..request });
    let ringing = read(&INVITE.replace("INVITE sip:bob@b.example SIP/2.0", "SIP/2.0 180 Ringing")).unwrap();
    assert_eq!(ringing, Match { role: Role::Provisional, ..request });
    assert_eq!(
        read(&INVITE.replace("INVITE sip:bob@b.example SIP/2.0", "SIP/2.0 486")).unwrap().role,
        Role::Final
    );
}

#[test]
fn the_parts_of_a_call_are_told_apart() {
    let invite = read(INVITE).unwrap();
    let ack = read(&INVITE.replace("INVITE", "ACK")).unwrap();
    assert_eq!((ack.role, ack.group_role, ack.group), (Role::OneWay, GroupRole::Within, invite.group));
    assert_eq!(ack.key, invite.key, "that of the INVITE whose response it acknowledges");
    let bye = read(&INVITE.replace("INVITE", "BYE").replace("314159", "314160")).unwrap();
    assert_eq!((bye.role, bye.group_role, bye.group), (Role::Request, GroupRole::Ends, invite.group));
    assert_ne!(bye.key, invite.key);
    let again = read(&INVITE.replace("b.example>\r", "b.example>;tag=1\r")).unwrap();
    assert_eq!(again.group_role, GroupRole::Within, "within a dialogue");
    let cancel = read(&INVITE.replace("INVITE", "CANCEL")).unwrap();
    assert_ne!(cancel.key, invite.key, "the same number, another method");
    assert_ne!(parse(INVITE.as_bytes(), 6).unwrap().key, invite.key);
}

#[test]
fn names_are_short_or_long_in_any_case() {
    let odd =
        INVITE.replace("Call-ID:", "i\t :").replace("CSeq: 314159 ", "cSEQ:314159   ").replace("To:", "T:");
    assert_eq!(read(&odd), read(INVITE));
    assert_eq!(read(&INVITE.replace("\r\n", "\n")), read(INVITE));
}

#[test]
fn what_is_cut_off_will_do_if_both_headers_are_inside() {
    let whole = read(INVITE);
    let enough = INVITE.find("CSeq").unwrap() + "CSeq: 314159 INVITE\r\n".len();
    for cut in 0..INVITE.len() {
        let got = read(&INVITE[..cut]);
        assert_eq!(got, if cut >= enough { whole } else { None }, "cut at {cut}");
    }
    // To comes last and is truncated: whether the INVITE begins a call is not known.
    let late = "INVITE sip:b SIP/2.0\r\nCall-ID: x\r\nCSeq: 1 INVITE\r\nTo: <sip:b";
    assert_eq!(read(late).unwrap().group_role, GroupRole::Within);
}

#[test]
fn other_things_are_not_sip() {
    for text in [
        "",
        "\r\n\r\n",
        "GET / HTTP/1.1\r\nCall-ID: x\r\nCSeq: 1 INVITE\r\n",
        "INVITE sip:b SIP/2.0\r\nCSeq: 1 INVITE\r\n",
        "INVITE sip:b SIP/2.0\r\nCall-ID: x\r\n",
        "INVITE sip:b SIP/2.0\r\nCall-ID:\r\nCSeq: 1 INVITE\r\n",
        "INVITE sip:b SIP/2.0\r\nCall-ID: x\r\nCSeq: 99999999999 INVITE\r\n",
        "INVITE sip:b SIP/2.0\r\nCall-ID: x\r\nCSeq: INVITE\r\n",
        "INVITE sip:b SIP/2.0\r\n\r\nCall-ID: x\r\nCSeq: 1 INVITE\r\n",
        "SIP/2.0 20 OK\r\nCall-ID: x\r\nCSeq: 1 INVITE\r\n",
        "SIP/2.0 2000 OK\r\nCall-ID: x\r\nCSeq: 1 INVITE\r\n",
        "SIP/2.0 099 OK\r\nCall-ID: x\r\nCSeq: 1 INVITE\r\n",
    ] {
        assert_eq!(read(text), None, "{text:?}");
    }
}

proptest! {
    #[test]
    fn random_bytes_do_not_panic(data in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = parse(&data, 1);
        let _ = parse(&[b"SIP/2.0 200 OK\r\n".as_slice(), &data].concat(), 1);
    }

    #[test]
    fn mutations_do_not_panic(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..10)) {
        let mut data = INVITE.as_bytes().to_vec();
        for (i, b) in edits { let i = i.index(data.len()); data[i] = b }
        let _ = parse(&data, 1);
    }

    #[test]
    fn headers_without_sense_do_not_panic(lines in prop::collection::vec("(Call-ID|i|CSeq|To|t| )?[:;=<>a-z0-9 ]{0,12}", 0..8)) {
        let _ = parse(format!("BYE x SIP/2.0\r\n{}\r\n", lines.join("\r\n")).as_bytes(), 1);
    }
}
