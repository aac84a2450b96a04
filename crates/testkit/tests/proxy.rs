//! Every fault of the proxy, against an echo server.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use testkit::proxy::{Proxy, Way};
use testkit::server::{Recipe, Server};
use testkit::wait::{eventually, soon};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn start() -> (Server, Proxy, TcpStream) {
    let server = Recipe::new(env!("CARGO_BIN_EXE_echo"), "testkit").args(["{port}"]).start().await;
    let proxy = Proxy::to(server.address()).await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut stream, b"hello").await, b"hello");
    (server, proxy, stream)
}

/// What comes back: less than was sent when the connection ends.
async fn ask(stream: &mut TcpStream, word: &[u8]) -> Vec<u8> {
    let mut back = Vec::new();
    if stream.write_all(word).await.is_ok() {
        let mut rest = stream.take(word.len().try_into().unwrap());
        // An error is an end too.
        let _ = soon("an answer or an end", rest.read_to_end(&mut back)).await;
    }
    back
}

async fn silent(stream: &mut TcpStream) -> bool {
    tokio::time::timeout(Duration::from_millis(100), stream.read_u8()).await.is_err()
}

#[tokio::test]
async fn a_cut_ends_connections_and_refuses_new_ones() {
    let (_server, proxy, mut stream) = start().await;
    proxy.cut();
    assert_eq!(ask(&mut stream, b"x").await, b"");
    let mut refused = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut refused, b"x").await, b"");
    proxy.pass();
    let mut again = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut again, b"back").await, b"back");
    proxy.drop_connections();
    assert_eq!(ask(&mut again, b"x").await, b"");
    let mut new = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut new, b"new").await, b"new");
}

#[tokio::test]
async fn a_freeze_holds_everything_back_until_it_passes_again() {
    let (_server, proxy, mut stream) = start().await;
    proxy.freeze();
    stream.write_all(b"a").await.unwrap();
    assert!(silent(&mut stream).await);
    proxy.pass();
    assert_eq!(soon("what was held back", stream.read_u8()).await.unwrap(), b'a');
    proxy.blackhole();
    assert_eq!(ask(&mut stream, b"x").await, b"");
    let mut swallowed = TcpStream::connect(proxy.address()).await.unwrap();
    swallowed.write_all(b"x").await.unwrap();
    assert!(silent(&mut swallowed).await);
}

#[tokio::test]
async fn each_direction_can_be_delayed() {
    let (_server, proxy, mut stream) = start().await;
    for way in [Way::Up, Way::Down] {
        proxy.delay(way, Duration::from_millis(300));
        stream.write_all(b"z").await.unwrap();
        assert!(silent(&mut stream).await, "{way:?} is late");
        assert_eq!(soon("the late byte", stream.read_u8()).await.unwrap(), b'z');
        proxy.pass();
    }
    assert_eq!(ask(&mut stream, b"quick").await, b"quick");
}

#[tokio::test]
async fn a_cut_can_come_in_the_middle_of_a_message() {
    let (_server, proxy, mut stream) = start().await;
    proxy.cut_after(Way::Down, 3);
    assert_eq!(ask(&mut stream, b"abcdef").await, b"abc");
    proxy.pass();
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    proxy.cut_after(Way::Up, 2);
    assert!(ask(&mut stream, b"abcdef").await.len() <= 2);
}

#[tokio::test]
async fn a_reply_can_be_lost_after_the_request_took_effect() {
    let (_server, proxy, mut stream) = start().await;
    proxy.lose_next_reply();
    assert!(!proxy.lost_a_reply());
    assert_eq!(ask(&mut stream, b"lost").await, b"");
    eventually("the reply is lost", async || proxy.lost_a_reply()).await;
    let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
    assert_eq!(ask(&mut stream, b"only one").await, b"only one");
}
