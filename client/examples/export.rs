//! Writes the last used session as JSON, which anyone can verify without this program
//! (`scripts/verify_export.py`). The file is as secret as the conversation.
//!
//! ```sh
//! cargo run -p baton-client --example export -- HOME STORE_URL SHARDS session.json
//! ```
#![expect(clippy::print_stdout, reason = "the name of the file is the program's output")]

use std::{error::Error, path::Path, time::Duration};

use baton_client::{Client, ClientConfig};
use baton_keys::files::write_private;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [home, store, shards, file] = arguments.as_slice() else {
        return Err("usage: export HOME STORE_URL SHARDS FILE".into());
    };
    let config = ClientConfig::with_http(Some(Path::new(home)), store, store, None, shards.parse()?)?;
    let client = Client::open(config).await?;
    let session = client.last_session().await?.ok_or("there is no session in this home")?;
    // With the root, the holder of the file could also continue the session.
    let text = client.session(session).export(false).await?;
    write_private(Path::new(file), text.as_bytes())?;
    println!("session {session} is in {file}");
    client.shutdown(Duration::from_secs(5)).await;
    Ok(())
}
