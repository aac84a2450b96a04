//! A connection that speaks the replication protocol.

use std::fmt;
use std::time::Duration;

use pgwire_replication::Lsn;
use pgwire_replication::auth::ScramClient;
use pgwire_replication::protocol::framing::{
    MessageReader, write_copy_data, write_password_message, write_query, write_ssl_request,
    write_startup_message,
};
use pgwire_replication::protocol::messages::auth;
use pgwire_replication::protocol::{BackendMessage, ErrorFields, parse_auth_request};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, BufReader, ReadHalf, WriteHalf};
use tokio::net::{TcpStream, UnixStream};

use super::address::Address;
use crate::error::BoxError;

/// Connecting, and each answer before the stream begins, takes no longer than this.
const TIME: Duration = Duration::from_secs(20);

/// What the server is told we are.
pub(super) const APPLICATION: &str = "lockkeeper_cdc";

/// How everything is to be written: by default that hangs on the server, the database and the role.
const SETTINGS: [(&str, &str); 9] = [
    ("client_encoding", "UTF8"),
    ("DateStyle", "ISO, YMD"),
    ("IntervalStyle", "postgres"),
    ("TimeZone", "UTC"),
    ("bytea_output", "hex"),
    ("extra_float_digits", "1"),
    ("statement_timeout", "0"),
    ("idle_session_timeout", "0"),
    // Half of it is how long the server may be silent while it skips what nobody wants.
    ("wal_sender_timeout", "20s"),
];

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// Why it does not work.
#[derive(Debug)]
pub(super) enum WireError {
    /// The server says so: the SQLSTATE and the text.
    Server(String, String),
    Other(BoxError),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(code, text) => write!(f, "{text} (SQLSTATE {code})"),
            Self::Other(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for WireError {}

impl<E: Into<BoxError>> From<E> for WireError
where
    E: NotWire,
{
    fn from(error: E) -> Self {
        Self::Other(error.into())
    }
}

/// What becomes [`WireError::Other`].
pub(super) trait NotWire {}

impl NotWire for std::io::Error {}
impl NotWire for pgwire_replication::PgWireError {}
impl NotWire for BoxError {}
impl NotWire for String {}
impl NotWire for &str {}
impl NotWire for std::str::Utf8Error {}

impl WireError {
    fn of(message: &BackendMessage) -> Self {
        let fields = ErrorFields::parse(&message.payload);
        let text = fields.message.unwrap_or_else(|| "an error without a text".into());
        Self::Server(fields.code.unwrap_or_default(), text)
    }
}

/// The half that reads.
pub(super) struct Input {
    stream: BufReader<ReadHalf<Box<dyn Stream>>>,
    reader: MessageReader,
}

/// The half that writes.
pub(super) struct Output {
    stream: WriteHalf<Box<dyn Stream>>,
}

pub(super) struct Wire {
    input: Input,
    output: Output,
}

impl Wire {
    pub(super) async fn connect(address: &Address) -> Result<Self, WireError> {
        match tokio::time::timeout(TIME, Self::greet(address)).await {
            Ok(connected) => connected,
            Err(_) => Err(format!("the server did not answer within {TIME:?}").into()),
        }
    }

    async fn greet(address: &Address) -> Result<Self, WireError> {
        let (input, stream) = tokio::io::split(open(address).await?);
        let input = BufReader::with_capacity(128 * 1024, input);
        let input = Input { stream: input, reader: MessageReader::new() };
        let mut wire = Self { input, output: Output { stream } };
        let user = address.options.get_username();
        let mut parameters = vec![
            ("user", user),
            ("database", address.database()),
            ("replication", "database"),
            ("application_name", APPLICATION),
        ];
        parameters.extend(SETTINGS);
        write_startup_message(&mut wire.output.stream, 196_608, &parameters).await?;
        let mut scram = Scram { client: ScramClient::new(user), proof: None };
        loop {
            let message = wire.input.message().await?;
            match message.tag {
                b'Z' => return Ok(wire),
                b'R' => wire.authenticate(&message, address, &mut scram).await?,
                // Parameters, the key to cancel by, and notices.
                _ => {}
            }
        }
    }

    async fn authenticate(
        &mut self,
        message: &BackendMessage,
        address: &Address,
        scram: &mut Scram,
    ) -> Result<(), WireError> {
        let password = || address.password.as_deref().ok_or("the server wants a password");
        let (kind, data) = parse_auth_request(&message.payload)?;
        let answer = match kind {
            auth::OK => return Ok(()),
            auth::CLEARTEXT_PASSWORD => [password()?.as_bytes(), &[0]].concat(),
            auth::SASL => {
                let first = scram.client.client_first.as_bytes();
                let length = i32::try_from(first.len()).unwrap_or(i32::MAX).to_be_bytes();
                [b"SCRAM-SHA-256\0", &length[..], first].concat()
            }
            auth::SASL_CONTINUE => {
                let first = std::str::from_utf8(data)?;
                let (last, message, salted) = scram.client.client_final(password()?, first)?;
                scram.proof = Some((message, salted));
                last.into_bytes()
            }
            auth::SASL_FINAL => {
                let (message, salted) = scram.proof.take().ok_or("an answer to nothing")?;
                let last = std::str::from_utf8(data)?;
                ScramClient::verify_server_final(last, &salted, &message)?;
                return Ok(());
            }
            _ => {
                let text = "the server wants to know us by a way that this program does not know: \
                            it knows SCRAM-SHA-256, certificates and plain passwords";
                return Err(WireError::Server("28000".into(), text.into()));
            }
        };
        Ok(write_password_message(&mut self.output.stream, &answer).await?)
    }

    /// A statement with one row as its answer; its columns as text.
    pub(super) async fn row(&mut self, sql: &str) -> Result<Vec<String>, WireError> {
        let asked = async {
            write_query(&mut self.output.stream, sql).await?;
            let (mut row, mut failed) = (Vec::new(), None);
            loop {
                match self.input.message().await {
                    Ok(message) if message.tag == b'Z' => break,
                    Ok(message) if message.tag == b'D' => row = columns(&message.payload),
                    Ok(_) => {}
                    Err(error @ WireError::Server(..)) => failed = Some(error),
                    Err(error) => return Err(error),
                }
            }
            failed.map_or(Ok(row), Err)
        };
        match tokio::time::timeout(TIME, asked).await {
            Ok(row) => row,
            Err(_) => Err(format!("the server did not answer within {TIME:?}").into()),
        }
    }

    /// Turns it into a stream.
    pub(super) async fn start(mut self, sql: &str) -> Result<(Input, Output), WireError> {
        let started = async {
            write_query(&mut self.output.stream, sql).await?;
            while self.input.message().await?.tag != b'W' {}
            Ok((self.input, self.output))
        };
        match tokio::time::timeout(TIME, started).await {
            Ok(halves) => halves,
            Err(_) => Err(format!("the stream did not begin within {TIME:?}").into()),
        }
    }
}

struct Scram {
    client: ScramClient,
    proof: Option<(String, Vec<u8>)>,
}

async fn open(address: &Address) -> Result<Box<dyn Stream>, WireError> {
    let port = address.options.get_port();
    if let Some(folder) = address.options.get_socket() {
        let path = folder.join(format!(".s.PGSQL.{port}"));
        return Ok(Box::new(UnixStream::connect(path).await?));
    }
    let mut stream = TcpStream::connect((address.host(), port)).await?;
    stream.set_nodelay(true)?;
    if !address.wants_tls() {
        return Ok(Box::new(stream));
    }
    write_ssl_request(&mut stream).await?;
    match stream.read_u8().await? {
        b'S' => Ok(Box::new(address.tls.connect(address.host(), stream).await?)),
        _ if address.tls.required() => Err("the server does not speak TLS".into()),
        _ => Ok(Box::new(stream)),
    }
}

fn columns(payload: &[u8]) -> Vec<String> {
    let mut columns = Vec::new();
    let Some((_, mut rest)) = payload.split_first_chunk::<2>() else { return columns };
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        // NULL has a length of -1.
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(0);
        let Some((text, after)) = after.split_at_checked(length) else { break };
        columns.push(String::from_utf8_lossy(text).into_owned());
        rest = after;
    }
    columns
}

impl Input {
    /// The next message; one that says that something went wrong is an error. Cancel safe.
    pub(super) async fn message(&mut self) -> Result<BackendMessage, WireError> {
        let message = self.reader.read(&mut self.stream).await?;
        match message.tag {
            b'E' => Err(WireError::of(&message)),
            _ => Ok(message),
        }
    }
}

impl Output {
    /// How far we are: what was received, and what need not be sent again.
    pub(super) async fn status(
        &mut self,
        received: Lsn,
        confirmed: Lsn,
        answer: bool,
    ) -> Result<(), WireError> {
        let mut status = Vec::with_capacity(34);
        status.push(b'r');
        // With less than what was received as the first, the server would ask again at once, for ever.
        for lsn in [received.max(confirmed), confirmed, confirmed] {
            status.extend(lsn.as_u64().to_be_bytes());
        }
        // The time: it is for people.
        status.extend(0_i64.to_be_bytes());
        status.push(u8::from(answer));
        match tokio::time::timeout(TIME, write_copy_data(&mut self.stream, &status)).await {
            Ok(written) => Ok(written?),
            Err(_) => Err(format!("nothing can be sent to the server within {TIME:?}").into()),
        }
    }
}
