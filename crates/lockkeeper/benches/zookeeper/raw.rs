//! The calls that a lock is made of, without the lock.

use std::time::Duration;

use zookeeper_client::{Acls, Client, CreateMode, CreateSequence, Error};

use crate::harness::worker::{Library, Lock};

/// A session as the library has it.
pub(crate) async fn connect(url: &str, session: Duration) -> Client {
    let servers = url.strip_prefix("zookeeper://").unwrap();
    let connector = Client::connector().with_session_timeout(session);
    connector.connect(servers).await.unwrap()
}

/// Raw calls: create and list together, as we do, or one after the other, as others do.
pub(crate) struct Raw {
    client: Client,
    together: bool,
}

impl Library for Raw {
    type Lock = Node;

    fn package(_: &str) -> &'static str {
        "zookeeper-client"
    }

    async fn connect(url: &str, library: &str, lease: Duration) -> Self {
        let together = match library {
            "raw-together" => true,
            "raw-steps" => false,
            _ => panic!("no such library: {library}"),
        };
        Self { client: connect(url, lease).await, together }
    }

    async fn lock(&self, name: String, _task: u64) -> Node {
        // Not the name alone: others leave containers there, which the server removes when it likes.
        let dir = format!("/raw-{name}");
        let options = CreateMode::Persistent.with_acls(Acls::anyone_all());
        match self.client.create(&dir, b"", &options).await {
            Ok(_) | Err(Error::NodeExists) => {}
            Err(error) => panic!("{dir}: {error}"),
        }
        let prefix = format!("{dir}/lock-");
        Node { client: self.client.clone(), together: self.together, dir, prefix }
    }
}

pub(crate) struct Node {
    client: Client,
    together: bool,
    dir: String,
    prefix: String,
}

impl Lock for Node {
    /// The number of its node.
    type Taken = CreateSequence;

    async fn take(&mut self) -> CreateSequence {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let creating = self.client.create(&self.prefix, b"", &options);
        // A request is sent with the call, not with the wait for its answer.
        let (sequence, children) = if self.together {
            let listing = self.client.list_children(&self.dir);
            (creating.await.unwrap().1, listing.await.unwrap())
        } else {
            (creating.await.unwrap().1, self.client.list_children(&self.dir).await.unwrap())
        };
        assert_eq!(children.len(), 1, "{} is taken, and the raw ones cannot wait", self.dir);
        sequence
    }

    async fn release(&mut self, sequence: CreateSequence) {
        self.client.delete(&format!("{}{sequence}", self.prefix), None).await.unwrap();
    }
}
