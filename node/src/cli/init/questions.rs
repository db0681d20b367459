//! The questions of `init` at a terminal.

use std::io::{BufRead, Write};

use baton_kit::prompt;

use super::store::{StoreChoice, StoreRequest};
use crate::config::parse_store_url;

const MENU: &str = "\
Where does this node store what it answers?
  walrus-testnet   Walrus's test network; you name a publisher and an aggregator
  walrus-mainnet   Walrus's main network; you name a publisher of your own
  embedded         `baton-testnet store` on this machine, for trying things out
  URL              another publisher, such as https://publisher.example
  none             decide later: the node then cannot store

";

/// Asks for the store. An empty answer, or the end of the input, means none.
///
/// # Errors
/// The terminal cannot be read or written.
pub(super) fn ask_store(input: &mut impl BufRead, output: &mut impl Write) -> std::io::Result<StoreRequest> {
    output.write_all(MENU.as_bytes())?;
    let store = ask(input, output, "Store [none]: ", StoreChoice::None, str::parse)?;
    let mut request = StoreRequest { store: Some(store.clone()), ..StoreRequest::default() };
    if !store.needs_publisher() {
        return Ok(request);
    }
    let url = |text: &str| parse_store_url(text).map(Some);
    request.publishers.extend(ask(input, output, "Publisher's URL [decide later]: ", None, url)?);
    if request.publishers.is_empty() {
        request.store = Some(StoreChoice::None);
        return Ok(request);
    }
    request.aggregators.extend(ask(input, output, "Aggregator's URL [the publisher's]: ", None, url)?);
    Ok(request)
}

/// Asks until the answer can be read; an empty one is the default.
fn ask<T>(
    input: &mut impl BufRead,
    output: &mut impl Write,
    question: &str,
    default: T,
    parse: impl Fn(&str) -> Result<T, String>,
) -> std::io::Result<T> {
    loop {
        let answer = prompt::line(input, output, question)?.unwrap_or_default();
        if answer.is_empty() {
            return Ok(default);
        }
        match parse(&answer) {
            Ok(value) => return Ok(value),
            Err(problem) => writeln!(output, "{problem}")?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_a_request_and_wrong_ones_are_asked_again() {
        let asked = |typed: &str| {
            let mut shown = Vec::new();
            let request = ask_store(&mut typed.as_bytes(), &mut shown).unwrap();
            (request, String::from_utf8(shown).unwrap())
        };
        for typed in ["", "\n", "none\n", "walrus-testnet\n\n"] {
            assert_eq!(asked(typed).0.store, Some(StoreChoice::None), "{typed:?}");
        }
        let (request, shown) = asked("walrus\nwalrus-testnet\nhost\nhttps://p\nhttps://a\n");
        assert_eq!(request.store, Some(StoreChoice::WalrusTestnet));
        assert_eq!(
            (request.publishers, request.aggregators),
            (vec!["https://p".into()], vec!["https://a".into()])
        );
        assert!(shown.contains("expected walrus-testnet") && shown.contains("expected a URL"), "{shown}");
        assert_eq!(asked("https://p\n").0.store, Some(StoreChoice::Url("https://p".to_owned())));
    }
}
