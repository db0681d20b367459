//! A TCP forwarder that counts the bytes on the wire.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// Bytes counted so far.
#[derive(Debug, Default)]
pub(super) struct ByteCounts {
    /// From clients to the server.
    pub(super) up: AtomicU64,
    /// From the server to clients.
    pub(super) down: AtomicU64,
}

/// Forwards connections to `server`; returns its own URL. Aborting the task ends it.
pub(super) async fn start(server: &str) -> anyhow::Result<(String, Arc<ByteCounts>, JoinHandle<()>)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let counted = Arc::new(ByteCounts::default());
    let (server, shared) = (server.trim_start_matches("http://").to_owned(), counted.clone());
    let task = tokio::spawn(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((client, _)) = listener.accept().await {
            let (server, counted) = (server.clone(), shared.clone());
            connections.spawn(async move {
                // Both ends notice a broken connection; the counts stay.
                let _ = forward(client, &server, &counted).await;
            });
            while connections.try_join_next().is_some() {}
        }
    });
    Ok((url, counted, task))
}

async fn forward(client: TcpStream, server: &str, counted: &ByteCounts) -> std::io::Result<()> {
    let server = TcpStream::connect(server).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (client_read, client_write) = client.into_split();
    let (server_read, server_write) = server.into_split();
    let up = copy(client_read, server_write, &counted.up);
    let down = copy(server_read, client_write, &counted.down);
    tokio::try_join!(up, down).map(|_| ())
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    counter: &AtomicU64,
) -> std::io::Result<()> {
    let mut buffer = vec![0u8; 64 * 1024];
    loop {
        let length = from.read(&mut buffer).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        counter.fetch_add(length as u64, Relaxed);
        to.write_all(buffer.get(..length).unwrap_or_default()).await?;
    }
}
