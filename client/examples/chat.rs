//! Sends one message in a new session, and prints the answer as it comes.
//!
//! Start a network with `baton-testnet up --engine echo`, and give this program its store and one of its nodes:
//!
//! ```sh
//! cargo run -p baton-client --example chat -- HOME STORE_URL SHARDS NODE_ADDRESS "What is a baton?"
//! ```
#![expect(clippy::print_stdout, reason = "the answer is the program's output")]

use std::{
    error::Error,
    io::{Write as _, stdout},
    path::Path,
    time::Duration,
};

use baton_client::{Client, ClientConfig, NewSession, TurnEvent, TurnInput};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [home, store, shards, node, message] = arguments.as_slice() else {
        return Err("usage: chat HOME STORE_URL SHARDS NODE_ADDRESS MESSAGE".into());
    };
    // The folder keeps the device key and a sealed journal for each session.
    let mut config = ClientConfig::with_http(Some(Path::new(home)), store, store, None, shards.parse()?)?;
    config.bootstrap.push(node.parse()?);
    let client = Client::open(config).await?;

    let session = client.session(client.new_session(NewSession::default()).await?);
    // The echo engine repeats its input. Without this permission no client asks it.
    let input = TurnInput::user(message.as_str()).with_route(|route| route.allow_echo = true);
    let outcome = session
        .turn(input, |event| match event {
            TurnEvent::Text(text) => {
                print!("{text}");
                // A closed output ends the program at the next line.
                let _ = stdout().flush();
            }
            // Another node begins the answer again.
            TurnEvent::Restarted => println!("\n(the answer starts over)"),
            _ => {}
        })
        .await?;
    // Here the client has rebuilt record, link and blob byte for byte: the turn is accepted.
    println!("\nsession {}, turn {}, served by {}", session.id(), outcome.seq, outcome.node);

    // The node stores the blob; the client publishes the session's head. Both may still run.
    session.wait_settled(Duration::from_secs(20)).await?;
    client.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
