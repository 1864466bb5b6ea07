//! Lower bound of a server: receives and sends as many bytes as Slidegate and parses none of them.
//!
//! wrk measures its own maximum rate here, and the CPU time is that of the kernel.

use std::io::{ErrorKind, Read, Write};

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};

/// Same length and headers as a response of Slidegate.
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nratelimit-policy: \"1000/1m\";q=1000;w=60\r\nratelimit: \"1000/1m\";r=999;t=60\r\ncontent-length: 267\r\ndate: Thu, 01 Jan 1970 00:00:00 GMT\r\n\r\n{\"allowed\":true,\"policy\":\"api\",\"limit\":1000,\"remaining\":999,\"reset_after_ms\":60000,\"retry_after_ms\":null,\"violated\":[],\"source\":\"store\",\"quotas\":[{\"name\":\"1000/1m\",\"limit\":1000,\"window_ms\":60000,\"used\":1,\"remaining\":999,\"reset_after_ms\":60000,\"retry_after_ms\":null}]}";

const LISTENER: Token = Token(usize::MAX);

/// Serves until it is killed.
pub(crate) fn bytes() {
    let mut poll = Poll::new().expect("Linux");
    let mut listener = TcpListener::bind("127.0.0.1:0".parse().expect("an address")).expect("a free port");
    println!("bytes at http://{}", listener.local_addr().expect("the listener is bound"));
    poll.registry().register(&mut listener, LISTENER, Interest::READABLE).expect("Linux");
    let (mut streams, mut events, mut input) = (Vec::new(), Events::with_capacity(1024), [0; 4096]);
    loop {
        if let Err(error) = poll.poll(&mut events, None) {
            assert_eq!(error.kind(), ErrorKind::Interrupted, "{error}");
        }
        for event in &events {
            match event.token() {
                LISTENER => accept(&listener, &poll, &mut streams),
                Token(place) => {
                    let has_ended =
                        streams[place].as_mut().is_some_and(|stream| !respond(stream, &mut input));
                    if has_ended {
                        streams[place] = None;
                    }
                }
            }
        }
    }
}

fn accept(listener: &TcpListener, poll: &Poll, streams: &mut Vec<Option<TcpStream>>) {
    loop {
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return,
            Err(error) => panic!("{error}"),
        };
        stream.set_nodelay(true).expect("Linux");
        poll.registry().register(&mut stream, Token(streams.len()), Interest::READABLE).expect("Linux");
        streams.push(Some(stream));
    }
}

/// Sends one response per read; a caller sends its next request only after the last response. Returns whether the
/// connection stays open.
fn respond(stream: &mut TcpStream, input: &mut [u8]) -> bool {
    match stream.read(input) {
        Ok(0) => false,
        Ok(_) => stream.write_all(RESPONSE).is_ok(),
        Err(error) => error.kind() == ErrorKind::WouldBlock,
    }
}
