//! The server kit, tried on the smallest server there is.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::time::Duration;

use testkit::server::{Recipe, accepts};
use testkit::wait::soon;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn echo() -> Recipe {
    Recipe::new(env!("CARGO_BIN_EXE_echo"), "testkit").args(["{port}"])
}

async fn echoes(stream: &mut TcpStream, word: &[u8]) {
    stream.write_all(word).await.unwrap();
    let mut back = vec![0; word.len()];
    soon("the echo", stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(back, word);
}

#[tokio::test]
async fn starts_restarts_on_the_same_port_and_ends_when_dropped() {
    let mut server = echo().start().await;
    let address = server.address();
    echoes(&mut TcpStream::connect(address).await.unwrap(), b"one").await;
    assert!(server.log().contains("listening"), "{}", server.log());
    server.kill();
    assert!(!accepts(address));
    server.restart().await;
    echoes(&mut TcpStream::connect(server.address()).await.unwrap(), b"two").await;
    assert_eq!(server.address(), address);
    let dir = server.dir().to_owned();
    drop(server);
    assert!(!accepts(address));
    assert!(!dir.exists());
}

#[tokio::test]
async fn a_paused_server_answers_nothing_until_it_is_resumed() {
    let server = echo().start().await;
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    echoes(&mut stream, b"before").await;
    server.pause();
    stream.write_all(b"during").await.unwrap();
    let mut back = [0; 6];
    let silent = tokio::time::timeout(Duration::from_millis(200), stream.read(&mut back)).await;
    assert!(silent.is_err(), "a stopped process does not answer");
    server.resume();
    soon("the late echo", stream.read_exact(&mut back)).await.unwrap();
    assert_eq!(&back, b"during");
}

#[tokio::test]
#[should_panic(expected = "apt-get install no-such-package")]
async fn a_missing_program_fails_and_says_what_to_install() {
    Recipe::new("no-such-program", "no-such-package").start().await;
}

#[tokio::test]
#[should_panic(expected = "ended at once")]
async fn a_program_that_ends_at_once_fails_with_its_log() {
    Recipe::new("/bin/false", "coreutils").start().await;
}
