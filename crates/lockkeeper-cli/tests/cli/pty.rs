//! A terminal for tests: what is typed on one end, a program has on the other.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, ExitStatus};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use lockkeeper::clock::Instant;
use rustix::pty::OpenptFlags;

use super::harness::{SOON, Store, eventually};

/// A program in a session of its own that is controlled by a terminal of its own.
pub(crate) struct Session {
    child: Child,
    keyboard: File,
    screen: Receiver<Vec<u8>>,
    shown: String,
}

impl Session {
    pub(crate) fn start(store: &Store, words: &[&str]) -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = rustix::pty::openpt(flags).expect("a terminal");
        rustix::pty::grantpt(&master).expect("grant");
        rustix::pty::unlockpt(&master).expect("unlock");
        let path = rustix::pty::ptsname(&master, Vec::new()).expect("a name");
        let path = path.into_string().expect("UTF-8");
        let open = || File::options().read(true).write(true).open(&path).expect("opens");
        let mut command = Command::new("setsid");
        command.args(["--ctty", "env", "--default-signal"]).args(words);
        command.env("LOCKKEEPER_URL", store.url()).env("LC_ALL", "C").env("PS1", "$ ");
        command.env("TERM", "dumb").stdin(open()).stdout(open()).stderr(open());
        let child = command.spawn().expect("starts");
        let keyboard = File::from(master);
        let screen = watch(keyboard.try_clone().expect("a copy").into());
        Self { child, keyboard, screen, shown: String::new() }
    }

    pub(crate) fn type_in(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).expect("typed");
    }

    /// Waits until the screen shows this, and forgets everything up to there.
    pub(crate) fn shows(&mut self, text: &str) -> String {
        loop {
            if let Some(at) = self.shown.find(text) {
                let rest = self.shown.split_off(at + text.len());
                return std::mem::replace(&mut self.shown, rest);
            }
            match self.screen.recv_timeout(SOON) {
                Ok(bytes) => self.shown += &String::from_utf8_lossy(&bytes),
                Err(error) => panic!("no {text:?}: {error}; the screen shows {:?}", self.shown),
            }
        }
    }

    /// Whether the screen shows this before so much time has passed.
    pub(crate) fn shows_within(&mut self, text: &str, time: Duration) -> bool {
        let until = Instant::now() + time;
        while !self.shown.contains(text) {
            match self.screen.recv_timeout(until.since(Instant::now())) {
                Ok(bytes) => self.shown += &String::from_utf8_lossy(&bytes),
                Err(_) => return false,
            }
        }
        true
    }

    pub(crate) fn ends(&mut self) -> ExitStatus {
        let child = &mut self.child;
        eventually("the session ends", || child.try_wait().expect("ours"))
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn watch(screen: OwnedFd) -> Receiver<Vec<u8>> {
    let (send, shown) = channel();
    std::thread::spawn(move || {
        let mut screen = File::from(screen);
        let mut buffer = [0; 4096];
        // It ends with an error when nobody has the other end open.
        while let Ok(read @ 1..) = screen.read(&mut buffer) {
            if send.send(buffer[..read].to_vec()).is_err() {
                return;
            }
        }
    });
    shown
}
