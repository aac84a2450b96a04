//! A server that echoes what it is told: `echo PORT`. The testkit tries its own tools on it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};

fn main() {
    let port = std::env::args().nth(1).and_then(|port| port.parse().ok());
    let port: u16 = port.expect("usage: echo PORT");
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).expect("the port is free");
    eprintln!("listening on {port}");
    for stream in listener.incoming().flatten() {
        std::thread::spawn(move || {
            let mut stream = stream;
            let mut buffer = [0; 4096];
            while let Ok(read @ 1..) = stream.read(&mut buffer) {
                if stream.write_all(&buffer[..read]).is_err() {
                    return;
                }
            }
        });
    }
}
