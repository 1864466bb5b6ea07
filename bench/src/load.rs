//! Load generator on many connections. It uses less of its core than a server uses of its own, so the server is the
//! bottleneck.
//!
//! wrk and redis-benchmark fill their core before a fast server fills its own, so they measure how many responses they
//! can read. This generator writes all requests beforehand and searches a response only for its end.
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

use memchr::memchr_iter;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::sample::{Sample, count, cpu_s};
use crate::traffic::Random;

/// More than all responses that one connection can have outstanding.
const READ_BYTES: usize = 64 << 10;

/// Rule for the end of a response.
#[derive(Clone, Copy)]
pub(crate) enum ResponseEnd {
    /// After this number of lines.
    AfterLines(usize),
    /// By the `content-length` of an HTTP/1.1 response.
    ContentLength,
}

/// Requests, the server that receives them and the number of connections.
pub(crate) struct Load<'a> {
    pub(crate) address: SocketAddr,
    pub(crate) connections: usize,
    /// Requests in a pipeline. A caller sends the next pipeline after it has read all responses of the last one.
    pub(crate) depth: usize,
    /// The generator draws from these at random.
    pub(crate) requests: &'a [Vec<u8>],
    pub(crate) response_end: ResponseEnd,
}

/// Measured rates, and the share of their core that the callers used.
pub(crate) struct Measured {
    pub(crate) sample: Sample,
    pub(crate) callers_share: f64,
}

struct Caller {
    stream: TcpStream,
    /// Start of a response that is not complete yet.
    input: Vec<u8>,
    outstanding: usize,
}

impl Load<'_> {
    /// Sends `requests` requests to the server with the process ID `process`.
    pub(crate) fn measure(&self, process: u32, requests: usize) -> Measured {
        let mut poll = Poll::new().expect("Linux");
        let mut callers: Vec<Caller> =
            (0..self.connections).map(|place| self.connect(&poll, place)).collect();
        let own = std::process::id();
        let (start, before, own_before) = (Instant::now(), cpu_s(process), cpu_s(own));
        self.exchange(&mut poll, &mut callers, requests).expect("the server responds");
        let seconds = start.elapsed().as_secs_f64();
        let server_us = (cpu_s(process) - before) * 1e6 / count(requests);
        let sample = Sample { per_second: count(requests) / seconds, server_us };
        Measured { sample, callers_share: (cpu_s(own) - own_before) / seconds }
    }

    fn connect(&self, poll: &Poll, place: usize) -> Caller {
        let stream = std::net::TcpStream::connect(self.address).expect("the server listens");
        stream.set_nodelay(true).expect("TCP");
        stream.set_nonblocking(true).expect("Linux");
        let mut stream = TcpStream::from_std(stream);
        poll.registry().register(&mut stream, Token(place), Interest::READABLE).expect("Linux");
        Caller { stream, input: Vec::new(), outstanding: 0 }
    }

    fn exchange(&self, poll: &mut Poll, callers: &mut [Caller], requests: usize) -> io::Result<()> {
        let (mut events, mut buffer) = (Events::with_capacity(callers.len()), vec![0; READ_BYTES]);
        let (mut random, mut output) = (Random::new(1), Vec::new());
        let (mut sent, mut completed) = (0, 0);
        for caller in callers.iter_mut() {
            sent += self.send(caller, &mut random, &mut output)?;
        }
        while completed < requests {
            poll.poll(&mut events, None)?;
            for event in &events {
                let caller = &mut callers[event.token().0];
                let received = match caller.stream.read(&mut buffer) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(received) => received,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    Err(error) => return Err(error),
                };
                let ended = self.count_ended(&mut caller.input, &buffer[..received]);
                completed += ended;
                caller.outstanding -= ended;
                if caller.outstanding == 0 && sent < requests {
                    sent += self.send(caller, &mut random, &mut output)?;
                }
            }
        }
        Ok(())
    }

    fn send(&self, caller: &mut Caller, random: &mut Random, output: &mut Vec<u8>) -> io::Result<usize> {
        output.clear();
        for _ in 0..self.depth {
            let place = random.next() % self.requests.len() as u64;
            output.extend_from_slice(&self.requests[place as usize]);
        }
        caller.outstanding = self.depth;
        // The caller has no request outstanding, so the socket buffer has space.
        caller.stream.write_all(output).map(|()| self.depth)
    }

    /// Returns the number of responses that end within `received`. Keeps the incomplete rest in `input`.
    fn count_ended(&self, input: &mut Vec<u8>, received: &[u8]) -> usize {
        match self.response_end {
            ResponseEnd::AfterLines(lines) => {
                // Only the number of lines matters, so the bytes are not kept.
                let ends = input.len() + memchr_iter(b'\n', received).count();
                input.resize(ends % lines, 0);
                ends / lines
            }
            ResponseEnd::ContentLength => {
                input.extend_from_slice(received);
                let (mut at, mut ended) = (0, 0);
                while let Some(length) = http_length(&input[at..]) {
                    (at, ended) = (at + length, ended + 1);
                }
                input.drain(..at);
                ended
            }
        }
    }
}

/// Returns the length of the first response if it is complete.
fn http_length(bytes: &[u8]) -> Option<usize> {
    let mut headers = [httparse::EMPTY_HEADER; 16];
    let mut head = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(head_bytes)) = head.parse(bytes) else { return None };
    assert!(matches!(head.code, Some(200 | 429)), "{}", String::from_utf8_lossy(bytes));
    let length = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length =
        length.and_then(|length| str::from_utf8(length.value).ok()).and_then(|text| text.parse().ok());
    let total = head_bytes + length.unwrap_or(0);
    (bytes.len() >= total).then_some(total)
}
