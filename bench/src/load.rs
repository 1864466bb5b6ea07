//! Callers on many connections who take less of their core than a server takes of its own, so that it is the server that is
//! measured.
//!
//! wrk and redis-benchmark fill their core before a fast server fills its own; what they then count is how many answers they
//! can read. Here all requests are written beforehand and of an answer only its end is looked for.
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

use memchr::memchr_iter;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::sample::{Sample, count, cpu_s};
use crate::traffic::Random;

/// More than all answers that a connection may wait for.
const READ_BYTES: usize = 64 << 10;

/// How the end of an answer is found.
#[derive(Clone, Copy)]
pub(crate) enum Ends {
    /// Each has so many lines.
    AfterLines(usize),
    /// As HTTP/1.1 says, with a length.
    AsHttp,
}

/// What is asked by how many.
pub(crate) struct Load<'a> {
    pub(crate) address: SocketAddr,
    pub(crate) connections: usize,
    /// How many requests are sent before the first answer is read; and before all have been, no other.
    pub(crate) depth: usize,
    /// Drawn at random.
    pub(crate) requests: &'a [Vec<u8>],
    pub(crate) ends: Ends,
}

/// What was seen, and how much of their core it took the callers to see it.
pub(crate) struct Seen {
    pub(crate) sample: Sample,
    pub(crate) callers_share: f64,
}

struct Caller {
    stream: TcpStream,
    /// What has come of answers that have not ended.
    input: Vec<u8>,
    waits_for: usize,
}

impl Load<'_> {
    /// Asks `questions` times of the server that is `process`.
    pub(crate) fn ask(&self, process: u32, questions: usize) -> Seen {
        let mut poll = Poll::new().expect("Linux");
        let mut callers: Vec<Caller> =
            (0..self.connections).map(|place| self.connect(&poll, place)).collect();
        let own = std::process::id();
        let (start, before, own_before) = (Instant::now(), cpu_s(process), cpu_s(own));
        self.exchange(&mut poll, &mut callers, questions).expect("a server that answers");
        let seconds = start.elapsed().as_secs_f64();
        let server_us = (cpu_s(process) - before) * 1e6 / count(questions);
        let sample = Sample { per_second: count(questions) / seconds, server_us };
        Seen { sample, callers_share: (cpu_s(own) - own_before) / seconds }
    }

    fn connect(&self, poll: &Poll, place: usize) -> Caller {
        let stream = std::net::TcpStream::connect(self.address).expect("it listens");
        stream.set_nodelay(true).expect("TCP");
        stream.set_nonblocking(true).expect("Linux");
        let mut stream = TcpStream::from_std(stream);
        poll.registry().register(&mut stream, Token(place), Interest::READABLE).expect("Linux");
        Caller { stream, input: Vec::new(), waits_for: 0 }
    }

    fn exchange(&self, poll: &mut Poll, callers: &mut [Caller], questions: usize) -> io::Result<()> {
        let (mut events, mut room) = (Events::with_capacity(callers.len()), vec![0; READ_BYTES]);
        let (mut random, mut output) = (Random::new(1), Vec::new());
        let (mut sent, mut answered) = (0, 0);
        for caller in callers.iter_mut() {
            sent += self.send(caller, &mut random, &mut output)?;
        }
        while answered < questions {
            poll.poll(&mut events, None)?;
            for event in &events {
                let caller = &mut callers[event.token().0];
                let came = match caller.stream.read(&mut room) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(came) => came,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                    Err(error) => return Err(error),
                };
                let ended = self.count_ended(&mut caller.input, &room[..came]);
                answered += ended;
                caller.waits_for -= ended;
                if caller.waits_for == 0 && sent < questions {
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
        caller.waits_for = self.depth;
        // It has nothing under way, so there is room.
        caller.stream.write_all(output).map(|()| self.depth)
    }

    /// How many answers end with what `came`. What is left of another is kept.
    fn count_ended(&self, input: &mut Vec<u8>, came: &[u8]) -> usize {
        match self.ends {
            Ends::AfterLines(lines) => {
                // Which lines these are is of no interest, only their number.
                let ends = input.len() + memchr_iter(b'\n', came).count();
                input.resize(ends % lines, 0);
                ends / lines
            }
            Ends::AsHttp => {
                input.extend_from_slice(came);
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

/// The length of the answer at the beginning, if it is whole.
fn http_length(bytes: &[u8]) -> Option<usize> {
    let mut headers = [httparse::EMPTY_HEADER; 16];
    let mut head = httparse::Response::new(&mut headers);
    let Ok(httparse::Status::Complete(head_bytes)) = head.parse(bytes) else { return None };
    assert!(matches!(head.code, Some(200 | 429)), "{}", String::from_utf8_lossy(bytes));
    let length = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length =
        length.and_then(|length| str::from_utf8(length.value).ok()).and_then(|text| text.parse().ok());
    let whole = head_bytes + length.unwrap_or(0);
    (bytes.len() >= whole).then_some(whole)
}
