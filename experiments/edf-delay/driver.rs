//! `edf`: drives the deadline qdisc by lines on its standard input, in the network namespace that it is started in.
//!
//! ```text
//! link DEV key=value ...           attach, or change if attached: rate slack_us credit_us rt_rate rt_burst limit
//! channel DEV NAME key=value ...   add or change: from to (address/prefix:port) deadline_us rate burst
//! remove DEV NAME                  remove a channel
//! detach DEV                       the former root qdisc
//! silence · speak                  stop telling the kernel half that this process lives, and go on
//! stats DEV · verified             as a line of JSON
//! ```
//! Each line is answered by one line, `ok`, JSON, or `error: ...`, and one with `#` and the line's number. It ends with its input and leaves the links as
//! they are then.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::BufRead;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use teiji_bpf::qdisc_edf::{Channel, Edf, End, LinkSettings};

/// Half of what is the longest safe time.
const BEAT: Duration = Duration::from_millis(500);

fn main() -> ExitCode {
    let edf = match Edf::load() {
        Ok(edf) => edf,
        Err(error) => {
            println!("error: {error}");
            return ExitCode::FAILURE;
        }
    };
    match run(edf) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            println!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(mut edf: Edf) -> Result<()> {
    let (lines, incoming) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(|l| l.ok()) {
            if lines.send(line).is_err() {
                break;
            }
        }
    });
    println!("loaded");
    let mut names = BTreeMap::new();
    let (mut silent, mut number) = (false, 0);
    loop {
        if !silent {
            edf.beat()?;
        }
        match incoming.recv_timeout(BEAT) {
            Ok(line) => {
                number += 1;
                let answer = obey(&mut edf, &mut names, &mut silent, &line);
                println!("{}\n#{number}", answer.unwrap_or_else(|e| format!("error: {e:#}")));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

fn obey(
    edf: &mut Edf,
    names: &mut BTreeMap<u32, Vec<String>>,
    silent: &mut bool,
    line: &str,
) -> Result<String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    match &words[..] {
        ["link", dev, settings @ ..] => {
            let (index, settings) = (ifindex(dev)?, link(settings)?);
            if edf.links().contains(&index) {
                edf.set_link(index, &settings)?;
            } else {
                edf.attach(index, &settings)?;
            }
        }
        ["channel", dev, name, settings @ ..] => {
            let index = ifindex(dev)?;
            edf.put_channel(index, name, &a_channel(settings)?)?;
            let known = names.entry(index).or_default();
            if !known.iter().any(|n| n == name) {
                known.push((*name).into());
            }
        }
        ["remove", dev, name] => {
            edf.remove_channel(ifindex(dev)?, name)?;
            names.entry(ifindex(dev)?).or_default().retain(|n| n != name);
        }
        ["detach", dev] => {
            edf.detach(ifindex(dev)?)?;
            names.remove(&ifindex(dev)?);
        }
        ["silence"] => *silent = true,
        ["speak"] => *silent = false,
        ["stats", dev] => {
            let index = ifindex(dev)?;
            return Ok(stats(edf, index, names.get(&index).map_or(&[], Vec::as_slice))?.to_string());
        }
        ["verified"] => {
            let all: BTreeMap<String, u32> =
                edf.verified()?.into_iter().map(|v| (v.program, v.instructions)).collect();
            return Ok(json!(all).to_string());
        }
        _ => bail!("`{}` is no command", line.escape_debug()),
    }
    Ok("ok".into())
}

fn ifindex(dev: &str) -> Result<u32> {
    nix::net::if_::if_nametoindex(dev)
        .with_context(|| format!("there is no interface {}", dev.escape_debug()))
}

fn pairs<'a>(words: &[&'a str]) -> Result<Vec<(&'a str, &'a str)>> {
    words.iter().map(|w| w.split_once('=').with_context(|| format!("`{w}` is not key=value"))).collect()
}

fn link(words: &[&str]) -> Result<LinkSettings> {
    let mut s = LinkSettings::default();
    for (key, value) in pairs(words)? {
        let number: u64 = value.parse().with_context(|| format!("`{value}` is no number"))?;
        match key {
            "rate" => s.rate = number,
            "slack_us" => s.slack = Duration::from_micros(number),
            "credit_us" => s.credit = Duration::from_micros(number),
            "rt_rate" => s.rt_rate = number,
            "rt_burst" => s.rt_burst = number,
            "limit" => s.limit_bytes = u32::try_from(number)?,
            _ => bail!("`{key}` is no setting of a link"),
        }
    }
    Ok(s)
}

fn end(text: &str) -> Result<End> {
    let (address, rest) = text.split_once('/').context("an end is address/prefix or address/prefix:port")?;
    let (prefix, port) = rest.split_once(':').map_or((rest, None), |(prefix, port)| (prefix, Some(port)));
    Ok(End { addr: address.parse()?, prefix: prefix.parse()?, port: port.map(str::parse).transpose()? })
}

fn a_channel(words: &[&str]) -> Result<Channel> {
    let any = end("0.0.0.0/0")?;
    let mut c = Channel {
        from: any,
        to: any,
        proto: Some(17),
        deadline: Duration::from_millis(10),
        rate: 1_000_000,
        burst: 1600,
    };
    for (key, value) in pairs(words)? {
        match key {
            "from" => c.from = end(value)?,
            "to" => c.to = end(value)?,
            "proto" => c.proto = Some(value.parse()?),
            "deadline_us" => c.deadline = Duration::from_micros(value.parse()?),
            "rate" => c.rate = value.parse()?,
            "burst" => c.burst = value.parse()?,
            _ => bail!("`{key}` is no setting of a channel"),
        }
    }
    if words.iter().all(|w| !w.starts_with("from=")) && c.to.addr.is_ipv6() {
        c.from = end("::/0")?;
    }
    Ok(c)
}

fn stats(edf: &Edf, index: u32, names: &[String]) -> Result<Value> {
    let link = edf.link_stats(index)?;
    let mut channels = serde_json::Map::new();
    for name in names {
        let c = edf.channel_stats(index, name)?;
        channels.insert(
            name.clone(),
            json!({
                "packets": c.packets, "bytes": c.bytes, "delay_max": c.delay_max, "delay_sum": c.delay_sum,
                "misses": c.misses, "excess": c.excess, "drops": c.drops, "delay": c.delay,
            }),
        );
    }
    Ok(json!({
        "rt_packets": link.rt_packets, "rt_bytes": link.rt_bytes, "be_packets": link.be_packets,
        "be_bytes": link.be_bytes, "rt_drops": link.rt_drops, "be_drops": link.be_drops, "capped": link.capped,
        "fallback_packets": link.fallback_packets, "fallbacks": link.fallbacks, "largest": link.largest,
        "rt_queued": link.rt_queued, "be_queued": link.be_queued, "channels": channels,
    }))
}
