//! Throughput and latency of the embedded store over HTTP, beside nginx with the same bytes as files.
//!
//! PUT and GET of 64 KiB from 64 clients, each with one connection. PUT is measured for 10 and for 1000
//! shards: with 1000, the blob ID takes nearly all the time. GET measures store and nginx alternately in the
//! same run, so that both meet the same machine. If nginx is not on the PATH, its part is replaced by a note.
//! Prints one JSON object.
//!
//! ```text
//! cargo run --release -p baton-walrus-store --example bench_store -- [--seconds N] [--clients N] [--puts N]
//! ```
//!
//! The load comes from the store's own process and machine: the figures are for comparison, not a promise.
#![allow(clippy::print_stdout, reason = "its output is its purpose")]

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use baton_walrus_client::ShardCount;
use baton_walrus_store::{EmbeddedConfig, EmbeddedStore, MAX_RUNNING_PUTS, MAX_WAITING_PUTS};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};

const BLOB_BYTES: usize = 64 * 1024;
/// Blobs read in rotation: 16 MiB, which the system caches for store and nginx alike.
const BLOBS: usize = 256;
/// How long a client waits after a 429, as a well-behaved client would.
const BACKOFF: Duration = Duration::from_millis(5);
type Error = Box<dyn std::error::Error + Send + Sync>;

/// The size of the run.
#[derive(Clone, Copy)]
struct Plan {
    clients: usize,
    /// Duration of each part that reads.
    seconds: u64,
    /// PUTs of the part with ten shards; the part with 1000 makes a tenth of them.
    puts: usize,
}

fn plan() -> Result<Plan, Error> {
    let mut plan = Plan { clients: 64, seconds: 5, puts: 4_000 };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value: usize = args.next().ok_or("every option takes a number")?.parse()?;
        match name.as_str() {
            "--seconds" => plan.seconds = value as u64,
            "--clients" => plan.clients = value,
            "--puts" => plan.puts = value,
            _ => return Err(format!("{name} is no option; take --seconds, --clients or --puts").into()),
        }
    }
    Ok(plan)
}

/// Bytes unique to this number.
fn blob(number: usize) -> Vec<u8> {
    let mut bytes = vec![0; BLOB_BYTES];
    blake3::Hasher::new().update(&number.to_le_bytes()).finalize_xof().fill(&mut bytes);
    bytes
}

/// Latencies of the operations of one part, and its whole duration.
struct Measurement {
    latencies: Vec<Duration>,
    elapsed: Duration,
    turned_away: usize,
}

impl Measurement {
    fn report(mut self) -> Value {
        self.latencies.sort_unstable();
        let count = self.latencies.len();
        let at = |share: usize| {
            let latency = self.latencies.get((count * share / 100).min(count.saturating_sub(1)));
            latency.map_or(0.0, |latency| (latency.as_secs_f64() * 1e5).round() / 1e2)
        };
        let a_second = count as f64 / self.elapsed.as_secs_f64();
        json!({
            "operations": count,
            "per_second": a_second.round(),
            "mib_per_second": (a_second * BLOB_BYTES as f64 / 1048576.0).round(),
            "p50_ms": at(50),
            "p99_ms": at(99),
            "turned_away": self.turned_away,
        })
    }
}

async fn put_all(url: &str, clients: usize, count: usize, first: usize) -> Result<Measurement, Error> {
    let begin = Instant::now();
    let next = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..clients {
        let (url, next, client) = (format!("{url}/v1/blobs"), next.clone(), Client::new());
        tasks.spawn(async move {
            let (mut latencies, mut turned_away) = (Vec::new(), 0);
            loop {
                let number = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                if number >= count {
                    return Ok::<_, Error>((latencies, turned_away));
                }
                let bytes = bytes::Bytes::from(blob(first + number));
                loop {
                    // The time of the accepted attempt: before it, the client only waits.
                    let sent = Instant::now();
                    let answer = client.put(&url).body(bytes.clone()).send().await?;
                    match answer.status() {
                        StatusCode::OK => {
                            answer.bytes().await?;
                            latencies.push(sent.elapsed());
                            break;
                        }
                        StatusCode::TOO_MANY_REQUESTS => {
                            turned_away += 1;
                            tokio::time::sleep(BACKOFF).await;
                        }
                        status => return Err(format!("PUT was answered {status}").into()),
                    }
                }
            }
        });
    }
    collect(tasks, begin).await
}

async fn get_all(urls: &[String], clients: usize, seconds: u64) -> Result<Measurement, Error> {
    let begin = Instant::now();
    let end = begin + Duration::from_secs(seconds);
    let mut tasks = tokio::task::JoinSet::new();
    for number in 0..clients {
        let (urls, client) = (urls.to_vec(), Client::new());
        tasks.spawn(async move {
            let mut latencies = Vec::new();
            for url in urls.iter().cycle().skip(number * urls.len() / clients) {
                let sent = Instant::now();
                if sent >= end {
                    break;
                }
                let answer = client.get(url).send().await?.error_for_status()?;
                if answer.bytes().await?.len() != BLOB_BYTES {
                    return Err("GET gave another length".into());
                }
                latencies.push(sent.elapsed());
            }
            Ok((latencies, 0))
        });
    }
    collect(tasks, begin).await
}

async fn collect(
    mut tasks: tokio::task::JoinSet<Result<(Vec<Duration>, usize), Error>>,
    begin: Instant,
) -> Result<Measurement, Error> {
    let mut measured = Measurement { latencies: Vec::new(), elapsed: Duration::ZERO, turned_away: 0 };
    while let Some(ended) = tasks.join_next().await {
        let (latencies, turned_away) = ended??;
        measured.latencies.extend(latencies);
        measured.turned_away += turned_away;
    }
    measured.elapsed = begin.elapsed();
    Ok(measured)
}

/// A store on a port of its own, until the end of the run.
async fn serve(folder: &Path, shards: ShardCount, waiting: usize) -> Result<String, Error> {
    let config = EmbeddedConfig {
        shards,
        max_waiting_puts: waiting,
        ..EmbeddedConfig::new(folder.join(format!("store-{shards}-{waiting}")))
    };
    let store =
        tokio::task::spawn_blocking(|| EmbeddedStore::open(config, |_| Err("no heads".into()))).await??;
    let listener = EmbeddedStore::bind("127.0.0.1:0".parse()?).await?;
    let url = format!("http://{}", listener.local_addr()?);
    tokio::spawn(async move { store.serve(listener, std::future::pending()).await });
    Ok(url)
}

/// An nginx that serves a folder of files, until it is dropped.
struct Nginx(Child);

impl Drop for Nginx {
    fn drop(&mut self) {
        // It runs in the foreground without workers: this process is all of it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts nginx with its documented settings for static files, or returns the reason why not.
async fn nginx(folder: &Path) -> Result<(Nginx, Vec<String>), Error> {
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let files = folder.join("nginx");
    std::fs::create_dir_all(&files)?;
    for number in 0..BLOBS {
        std::fs::write(files.join(number.to_string()), blob(number))?;
    }
    let settings = format!(
        "daemon off; master_process off; worker_processes 1; pid {0}/pid; error_log {0}/error.log;\n\
         events {{ worker_connections 512; }}\n\
         http {{ access_log off; sendfile on; tcp_nopush on; tcp_nodelay on; keepalive_requests 1000000;\n\
         client_body_temp_path {0}/body; proxy_temp_path {0}/proxy; fastcgi_temp_path {0}/fastcgi;\n\
         uwsgi_temp_path {0}/uwsgi; scgi_temp_path {0}/scgi;\n\
         server {{ listen 127.0.0.1:{port}; root {0}; default_type application/octet-stream; }} }}\n",
        files.display()
    );
    let path = files.join("nginx.conf");
    std::fs::write(&path, settings)?;
    let mut command = Command::new("nginx");
    command.arg("-c").arg(&path).arg("-p").arg(&files).stdout(Stdio::null()).stderr(Stdio::null());
    let mut server = Nginx(command.spawn().map_err(|error| format!("nginx cannot be started: {error}"))?);
    let urls: Vec<_> = (0..BLOBS).map(|number| format!("http://127.0.0.1:{port}/{number}")).collect();
    while reqwest::get(&urls[0]).await.is_err() {
        if let Some(status) = server.0.try_wait()? {
            return Err(format!("nginx ended with {status}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok((server, urls))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let plan = plan()?;
    let folder = tempfile::TempDir::new_in(".")?;
    let path = folder.path();
    let all = plan.clients;

    let ten = serve(path, ShardCount::TESTBED, MAX_WAITING_PUTS).await?;
    put_all(&ten, all, BLOBS, 0).await?;
    let put_ten = put_all(&ten, all, plan.puts, BLOBS).await?.report();
    // The same with room for every client to wait, so that the store refuses none.
    let roomy = serve(path, ShardCount::TESTBED, all.saturating_sub(MAX_RUNNING_PUTS)).await?;
    let put_roomy = put_all(&roomy, all, plan.puts, 0).await?.report();
    let thousand = serve(path, ShardCount::MAINNET, all.saturating_sub(MAX_RUNNING_PUTS)).await?;
    let put_thousand = put_all(&thousand, all, plan.puts / 10, 0).await?.report();

    let mut urls = Vec::new();
    for number in 0..BLOBS {
        let id = baton_walrus_client::blob_id(&blob(number), ShardCount::TESTBED)?;
        urls.push(format!("{ten}/v1/blobs/{id}"));
    }
    let mut beside = nginx(path).await;
    let (mut get_store, mut get_nginx) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        get_store.push(get_all(&urls, all, plan.seconds).await?.report());
        if let Ok((_, urls)) = &mut beside {
            get_nginx.push(get_all(urls, all, plan.seconds).await?.report());
        }
    }
    let nginx = match &beside {
        Ok(_) => json!(get_nginx),
        Err(error) => json!(format!("left out: {error}")),
    };
    let report = json!({
        "blob_bytes": BLOB_BYTES,
        "clients": all,
        "cores": std::thread::available_parallelism()?.get(),
        "put_10_shards": put_ten,
        "put_10_shards_nobody_turned_away": put_roomy,
        "put_1000_shards_nobody_turned_away": put_thousand,
        "get": get_store,
        "get_nginx": nginx,
    });
    println!("{}", serde_json::to_string_pretty(&report)?);
    Ok(())
}
