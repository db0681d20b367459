//! Embeddings under attack: flipped bits, the wrong key, node, model or time, exceeded limits, and replies to
//! another order.

use baton_keys::{
    SecretSigningKey,
    exchange::{EmbedSecret, EphemeralSecret, ExchangeSecret},
};
use baton_proto::{
    ErrorCode, SignedObject, codec,
    embed::{EmbedAuth, EmbedReply, EmbedTexts, SealedReply, SealedTexts},
    ids::{AuthHash, EmbedId, Encapsulation, ModelId, NodeId, PayloadHash, PublicKey},
    limits::{
        MAX_CLOCK_SKEW_MS, MAX_EMBED_ANSWER_BYTES, MAX_EMBED_DIMENSIONS, MAX_EMBED_FRAME_BYTES,
        MAX_EMBED_REPLY_BYTES, MAX_EMBED_SEALED_BYTES, MAX_EMBED_TEXT_BYTES, MAX_EMBED_TEXTS, PAYLOAD_BLOCK,
    },
    receipt::{EngineKind, Receipt},
};

use crate::{
    adversary::{fields::check_changes, stored::TWENTY},
    generate::{
        embed::{order, secrets},
        session::{START_MS, node, node_exchange},
    },
};

const NOW: u64 = START_MS + 1_000;
const NONCE: [u8; 32] = [9; 32];

struct World {
    client: SecretSigningKey,
    node: SecretSigningKey,
    exchange: ExchangeSecret,
    auth: SignedObject<EmbedAuth>,
    texts: SealedTexts,
    secret: EmbedSecret,
}

fn world(texts: &[&str]) -> World {
    let texts = EmbedTexts::new(texts.iter().map(|text| (*text).to_owned()).collect());
    let (auth, texts, secret) = order(&texts);
    World { client: secrets().0, node: node(0), exchange: node_exchange(0), auth, texts, secret }
}

fn reply(world: &World, vectors: &[[f32; 2]]) -> EmbedReply {
    EmbedReply {
        version: 1,
        node: world.node.node_id(),
        auth_hash: world.auth.auth_hash(),
        model: world.auth.model,
        dimensions: 2,
        tokens: vec![4; vectors.len()],
        components: vectors.concat(),
    }
}

#[test]
fn texts_and_vectors_arrive_and_their_lengths_show_only_blocks() {
    let made = world(&["short", "", "é⛵"]);
    let (texts, secret) = made.texts.open(&made.exchange, &made.auth).unwrap();
    assert_eq!(texts.texts, ["short", "", "é⛵"]);
    assert_eq!(made.texts.0.len(), Encapsulation::LEN + PAYLOAD_BLOCK + 16);
    assert_eq!(world(&["something longer than that"]).texts.0.len(), made.texts.0.len());
    let sealed = SealedReply::seal(&reply(&made, &[[1.0, 0.0]; 3]), &made.node, &secret, &NONCE);
    let opened = sealed.open(&made.secret, &NONCE, &made.auth, 3).unwrap();
    assert_eq!(opened.vectors().collect::<Vec<_>>(), [[1.0, 0.0]; 3]);
    assert_eq!(format!("{texts:?} {opened:?} {sealed:?}").matches("short").count(), 0);
}

#[test]
fn every_flipped_bit_of_the_order_the_texts_and_the_reply_is_refused() {
    let made = world(&["a", "b"]);
    check_changes(&made.auth, &[("suite", |auth| auth.suite = 1, ErrorCode::UnsupportedVersion)]);
    for bit in 0..made.texts.0.len() * 8 {
        let mut flipped = made.texts.0.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let flipped = SealedTexts(flipped);
        assert_eq!(flipped.open(&made.exchange, &made.auth).unwrap_err(), ErrorCode::PayloadRejected);
    }
    // The seal also holds when the order names the changed bytes.
    for byte in 0..made.texts.0.len() {
        let mut flipped = made.texts.0.clone();
        flipped[byte] ^= 0x10;
        let flipped = SealedTexts(flipped);
        let auth = EmbedAuth { texts_hash: flipped.hash(), ..EmbedAuth::clone(&made.auth) };
        assert_eq!(flipped.open(&made.exchange, &auth).unwrap_err(), ErrorCode::PayloadRejected, "{byte}");
    }
    let sealed = SealedReply::seal(&reply(&made, &[[1.0, 0.0]; 2]), &made.node, &made.secret, &NONCE);
    for bit in 0..sealed.0.len() * 8 {
        let mut flipped = sealed.0.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        let opened = SealedReply(flipped).open(&made.secret, &NONCE, &made.auth, 2);
        assert_eq!(opened.unwrap_err(), ErrorCode::PayloadRejected, "bit {bit} of the reply");
    }
}

#[test]
fn texts_open_for_their_node_client_model_and_request_alone() {
    let made = world(&["a"]);
    let auth = EmbedAuth::clone(&made.auth);
    let other_key = ExchangeSecret::from_bytes(&[7; 32]);
    assert_eq!(made.texts.open(&other_key, &auth).unwrap_err(), ErrorCode::PayloadRejected);
    for other in [
        EmbedAuth { suite: 1, ..auth.clone() },
        EmbedAuth { client_key: PublicKey([8; 32]), ..auth.clone() },
        EmbedAuth { request: EmbedId([8; 16]), ..auth.clone() },
        EmbedAuth { model: ModelId([8; 32]), ..auth.clone() },
        EmbedAuth { audience: NodeId([8; 32]), ..auth.clone() },
        EmbedAuth { texts_hash: PayloadHash([8; 32]), ..auth.clone() },
    ] {
        assert_eq!(made.texts.open(&made.exchange, &other).unwrap_err(), ErrorCode::PayloadRejected);
    }
    // A key that forces the shared secret.
    let mut weak = made.texts.0.clone();
    weak[..Encapsulation::LEN].fill(0);
    let weak = SealedTexts(weak);
    let named = EmbedAuth { texts_hash: weak.hash(), ..auth };
    assert_eq!(weak.open(&made.exchange, &named).unwrap_err(), ErrorCode::PayloadRejected);
    assert_eq!(
        SealedTexts(vec![0; Encapsulation::LEN - 1]).open(&made.exchange, &made.auth).unwrap_err(),
        ErrorCode::PayloadRejected
    );
}

#[test]
fn orders_are_of_their_time() {
    let made = world(&["a"]);
    assert_eq!(made.auth.check_time(NOW + 60_000), Ok(()));
    assert_eq!(made.auth.check_time(NOW + 60_001), Err(ErrorCode::Expired));
    assert_eq!(made.auth.check_time(NOW - MAX_CLOCK_SKEW_MS - 1), Err(ErrorCode::NotYetValid));
}

#[test]
fn more_or_longer_texts_than_allowed_are_refused_on_both_sides() {
    let made = world(&["a"]);
    let binding = made.auth.binding();
    let seal = |texts: Vec<String>| {
        let ephemeral = EphemeralSecret::from_bytes(&[6; 64]);
        SealedTexts::seal(&EmbedTexts::new(texts), ephemeral, &made.exchange.public_key(), &binding)
    };
    let longest = "x".repeat(MAX_EMBED_TEXT_BYTES);
    let (full, _) = seal(vec![longest.clone(); MAX_EMBED_TEXTS]).unwrap();
    assert!(full.0.len() <= MAX_EMBED_SEALED_BYTES, "{}", full.0.len());
    let auth = EmbedAuth { texts_hash: full.hash(), ..EmbedAuth::clone(&made.auth) };
    assert_eq!(full.open(&made.exchange, &auth).unwrap().0.texts.len(), MAX_EMBED_TEXTS);
    assert_eq!(seal(vec![]).unwrap_err(), ErrorCode::PayloadRejected);
    assert_eq!(seal(vec![longest.clone() + "x"]).unwrap_err(), ErrorCode::FrameTooLarge);
    assert_eq!(seal(vec![String::new(); MAX_EMBED_TEXTS + 1]).unwrap_err(), ErrorCode::FrameTooLarge);
    // A client that does not check its limits: properly sealed, but too much.
    for (texts, code) in [
        (vec![], ErrorCode::PayloadRejected),
        (vec![longest + "x"], ErrorCode::FrameTooLarge),
        (vec![String::new(); MAX_EMBED_TEXTS + 1], ErrorCode::FrameTooLarge),
    ] {
        let plain = codec::encode(&EmbedTexts { version: 1, texts });
        let text = made.secret.seal_texts(&codec::pad_block(&plain, PAYLOAD_BLOCK));
        let sealed = SealedTexts([&made.texts.0[..Encapsulation::LEN], &text].concat());
        let auth = EmbedAuth { texts_hash: sealed.hash(), ..EmbedAuth::clone(&made.auth) };
        assert_eq!(sealed.open(&made.exchange, &auth).unwrap_err(), code);
    }
    let huge = SealedTexts(vec![0; MAX_EMBED_SEALED_BYTES + 1]);
    assert_eq!(huge.open(&made.exchange, &made.auth).unwrap_err(), ErrorCode::FrameTooLarge);
    const { assert!(MAX_EMBED_FRAME_BYTES > MAX_EMBED_SEALED_BYTES && MAX_EMBED_FRAME_BYTES < 1 << 20) };
}

#[test]
fn replies_for_something_else_or_that_are_not_vectors_are_refused() {
    let made = world(&["a", "b"]);
    let open = |reply: &EmbedReply, key: &SecretSigningKey| {
        SealedReply::seal(reply, key, &made.secret, &NONCE).open(&made.secret, &NONCE, &made.auth, 2)
    };
    let good = || reply(&made, &[[1.0, 0.0]; 2]);
    let changed = |change: fn(&mut EmbedReply)| {
        let mut reply = good();
        change(&mut reply);
        reply
    };
    assert!(open(&good(), &made.node).is_ok());
    assert_eq!(open(&good(), &made.client).unwrap_err(), ErrorCode::BadNodeSignature);
    let mut other = good();
    other.node = made.client.node_id();
    assert_eq!(open(&other, &made.client).unwrap_err(), ErrorCode::ReceiptMismatch, "another node's");
    for (change, code) in [
        ((|reply| reply.model = ModelId([8; 32])) as fn(&mut EmbedReply), ErrorCode::ReceiptMismatch),
        (|reply| reply.components[0] = f32::NAN, ErrorCode::ReceiptMismatch),
        (|reply| reply.components[3] = f32::INFINITY, ErrorCode::ReceiptMismatch),
        (|reply| reply.components.truncate(3), ErrorCode::ReceiptMismatch),
        (|reply| reply.components.push(0.0), ErrorCode::ReceiptMismatch),
        (|reply| reply.dimensions = 0, ErrorCode::FrameTooLarge),
        (|reply| reply.dimensions = 4097, ErrorCode::FrameTooLarge),
        (|reply| reply.tokens.clear(), ErrorCode::FrameTooLarge),
        (|reply| reply.tokens.resize(65, 1), ErrorCode::FrameTooLarge),
        (|reply| reply.version = 2, ErrorCode::UnsupportedVersion),
    ] {
        assert_eq!(open(&changed(change), &made.node).unwrap_err(), code);
    }
    let fewer = reply(&made, &[[1.0, 0.0]]);
    assert_eq!(
        open(&fewer, &made.node).unwrap_err(),
        ErrorCode::ReceiptMismatch,
        "a text without its vector"
    );
    // A carrier seals a reply to an earlier order again: the seal binds this order.
    let mut earlier = good();
    earlier.auth_hash = AuthHash([8; 32]);
    let sealed = SealedReply::seal(&earlier, &made.node, &made.secret, &NONCE);
    assert_eq!(sealed.open(&made.secret, &NONCE, &made.auth, 2).unwrap_err(), ErrorCode::PayloadRejected);
    let sealed = SealedReply::seal(&good(), &made.node, &made.secret, &NONCE);
    assert_eq!(sealed.open(&made.secret, &[0; 32], &made.auth, 2).unwrap_err(), ErrorCode::PayloadRejected);
    let largest = EmbedReply {
        version: 1,
        node: made.node.node_id(),
        auth_hash: made.auth.auth_hash(),
        model: made.auth.model,
        dimensions: u32::try_from(MAX_EMBED_DIMENSIONS).unwrap(),
        tokens: vec![1; MAX_EMBED_TEXTS],
        components: vec![0.5; MAX_EMBED_DIMENSIONS * MAX_EMBED_TEXTS],
    };
    assert!(codec::encode(&largest).len() <= MAX_EMBED_REPLY_BYTES);
    let sealed = SealedReply::seal(&largest, &made.node, &made.secret, &NONCE);
    let frame =
        codec::encode(&baton_proto::embed::EmbedAnswer::Embedded { nonce: NONCE, sealed: sealed.clone() });
    assert!(frame.len() <= MAX_EMBED_ANSWER_BYTES, "{}", frame.len());
    assert!(sealed.open(&made.secret, &NONCE, &made.auth, MAX_EMBED_TEXTS).is_ok());
}

#[test]
fn a_receipt_cannot_be_of_what_serves_no_turns() {
    let done = &TWENTY.session.done[9];
    let receipt = Receipt { engine: EngineKind::Embedding, ..Receipt::clone(&done.accepted.receipt) };
    let signed = SignedObject::sign(receipt, &TWENTY.session.nodes[done.node].signing);
    assert_eq!(
        SignedObject::<Receipt>::verify(signed.bytes().clone()).unwrap_err(),
        ErrorCode::NonCanonical,
        "as before there was such an engine"
    );
}
