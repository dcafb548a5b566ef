//! `--metrics ADDR`: what the tier counts, as Prometheus text, while a command runs.

use anyhow::{Context, Result, anyhow};
use expert_tier::observe::{BlockCounters, Pressure, SystemRoot};
use expert_tier::{Admission, AutoChoice, Snapshot, Tier};
use std::fmt::Write as _;
use std::io::{Read, Write as _};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use tiny_http::{Header, Method, Response, Server};

const PREFIX: &str = "expert_tier_";
const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";
/// Longest answer that is read, and how long one is waited for.
const ANSWER_CAP: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(3);

/// Answers `GET /metrics` until it is dropped.
pub(crate) struct Exporter {
    server: Arc<Server>,
    thread: Option<JoinHandle<()>>,
}

impl Exporter {
    /// Listens on `address`, such as `127.0.0.1:9400`; port 0 takes any, and the line says which.
    pub(crate) fn start(address: &str, tier: Tier) -> Result<Self> {
        let refused = |error| anyhow!("--metrics {address}: {error}");
        let server = Arc::new(Server::http(address).map_err(refused)?);
        eprintln!("metrics: http://{}/metrics", server.server_addr());
        let root = SystemRoot::default();
        let device = tier.device_counters(&root).ok();
        let theirs = Arc::clone(&server);
        let thread = std::thread::Builder::new()
            .name("metrics".to_owned())
            .spawn(move || {
                for request in theirs.incoming_requests() {
                    let known = matches!(request.url(), "/" | "/metrics");
                    let answered = if known && *request.method() == Method::Get {
                        let header = Header::from_bytes("Content-Type", CONTENT_TYPE);
                        let header = header.expect("a constant header is well formed");
                        let text = text(&tier, device.as_ref(), &root);
                        request.respond(Response::from_string(text).with_header(header))
                    } else {
                        let text = "only GET /metrics is answered\n";
                        request.respond(Response::from_string(text).with_status_code(404))
                    };
                    // Whoever asked is gone; the next one may stay.
                    drop(answered);
                }
            })
            .context("starting the metrics thread")?;
        Ok(Self { server, thread: Some(thread) })
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.server.unblock();
        if let Some(thread) = self.thread.take() {
            // It ends without a result.
            let _ = thread.join();
        }
    }
}

fn text(tier: &Tier, device: Option<&BlockCounters>, root: &SystemRoot) -> String {
    let mut out = String::new();
    let mut put = |name: &str, kind: &str, help: &str, value: f64| {
        // Writing to a string cannot fail.
        let _ = writeln!(out, "# HELP {PREFIX}{name} {help}");
        let _ = writeln!(out, "# TYPE {PREFIX}{name} {kind}\n{PREFIX}{name} {value}");
    };
    for ((name, help), value) in Snapshot::FIELDS.iter().zip(tier.snapshot().values()) {
        put(&format!("{name}_total"), "counter", help.trim(), value as f64);
    }
    let layout = tier.pool().layout();
    put("pool_bytes", "gauge", "Nominal bytes of all experts.", layout.total_bytes() as f64);
    put("pool_experts", "gauge", "Experts of the pool.", layout.total_experts() as f64);
    if let Some(bytes) = device.and_then(|counters| counters.read_bytes().ok()) {
        let help = "Bytes that the devices behind the pool read since the start, for whomever.";
        put("device_read_bytes_total", "counter", help, bytes as f64);
    }
    for (name, pressure) in [("memory", Pressure::memory(root)), ("io", Pressure::io(root))] {
        if let Ok(share) = pressure.some_avg10 {
            let help = "Per cent of ten seconds in which a task waited for it (PSI, some).";
            put(&format!("pressure_{name}_some_avg10"), "gauge", help, share);
        }
    }
    if let Some(demand) = tier.demand() {
        let computed = demand.computed_miss_bytes as f64;
        let help = "Bytes that exact LRU within the file budget would have read.";
        put("computed_miss_bytes_total", "counter", help, computed);
        let help = "Experts that fit into the memory that files can have.";
        put("capacity_experts", "gauge", help, demand.capacity_experts as f64);
        if let Some(ratio) = demand.amplification {
            put("amplification", "gauge", "Bytes read over computed misses.", ratio);
        }
        let alerts = f64::from(u8::from(demand.alert.is_some()));
        put("alert", "gauge", "1 once reads exceeded computed misses.", alerts);
    }
    if let Some(choice) = tier.admission_choice() {
        put_choice(&choice, &mut put);
    }
    out
}

fn put_choice(choice: &AutoChoice, put: &mut impl FnMut(&str, &str, &str, f64)) {
    let past = f64::from(u8::from(choice.mode == Admission::Direct));
    let help = "1 while misses are read past the page cache (admission auto).";
    put("admission_direct", "gauge", help, past);
    let costs = [("admit", choice.admit_ns_per_byte), ("direct", choice.direct_ns_per_byte)];
    for (name, cost) in costs {
        if let Some(cost) = cost {
            let help = "Nanoseconds waited a byte adopted, as last measured (admission auto).";
            put(&format!("admission_{name}_ns_per_byte"), "gauge", help, cost);
        }
    }
    let help = "Trials of unbuffered reads (admission auto).";
    put("admission_trials_total", "counter", help, choice.trials as f64);
    let help = "Changes of admission (admission auto).";
    put("admission_switches_total", "counter", help, choice.switches as f64);
    if let Some(seconds) = choice.checked_s_ago {
        let help = "Seconds since admission was last judged (admission auto).";
        put("admission_checked_seconds_ago", "gauge", help, seconds);
    }
}

/// The values that an exporter at `address` gives now, by their names without the prefix.
pub(crate) fn fetch(address: &str) -> Result<Vec<(String, f64)>> {
    let place = address.trim_start_matches("http://").trim_end_matches("/metrics");
    let resolved: SocketAddr = place
        .to_socket_addrs()
        .with_context(|| format!("{address}: expected HOST:PORT"))?
        .next()
        .with_context(|| format!("{address}: no such host"))?;
    let answer = ask(resolved, place).with_context(|| format!("{address}: no metrics there"))?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    if !head.starts_with("HTTP/1.1 200") && !head.starts_with("HTTP/1.0 200") {
        let status = head.lines().next().unwrap_or("nothing");
        return Err(anyhow!("{address}: answered {status:?}"));
    }
    let values = parse(body);
    if values.is_empty() {
        return Err(anyhow!("{address}: answers, but not as an expert tier"));
    }
    Ok(values)
}

fn ask(address: SocketAddr, host: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    // In one piece: who answers after the first of several resets the connection.
    let request = format!("GET /metrics HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_CAP).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

fn parse(text: &str) -> Vec<(String, f64)> {
    let lines = text.lines().filter_map(|line| line.strip_prefix(PREFIX)?.split_once(' '));
    lines.filter_map(|(name, value)| Some((name.to_owned(), value.trim().parse().ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_back_and_comments_are_not() {
        let text = "# HELP expert_tier_a x\nexpert_tier_a 1.5\nother 3\nexpert_tier_b_total 7\nexpert_tier_c\n";
        assert_eq!(parse(text), [("a".to_owned(), 1.5), ("b_total".to_owned(), 7.0)]);
    }

    #[test]
    fn whoever_is_not_an_exporter_is_named() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let other = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            // Closing with a request unread would reset the connection.
            assert!(stream.read(&mut [0; 512]).unwrap() > 0);
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello\n").unwrap();
        });
        let error = fetch(&address).unwrap_err().to_string();
        assert!(error.contains(&address) && error.contains("expert tier"), "{error}");
        other.join().unwrap();
        assert!(fetch("nowhere").unwrap_err().to_string().contains("HOST:PORT"));
    }
}
