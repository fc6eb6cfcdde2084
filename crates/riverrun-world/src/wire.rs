//! Bytes on a connection: numbers, texts, frames, and reads and writes that end at a deadline.
//!
//! Numbers are little-endian. A text is its length and its bytes. A frame is the length of its payload, its kind, its payload.
//! Every length is compared with what is there, or with a limit, before anything is allocated.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a wait checks whether to go on.
pub(crate) const TICK: Duration = Duration::from_millis(100);
/// The longest payload of a frame between ranks that know each other: the table of all ranks.
pub(crate) const LONGEST: usize = 16 << 20;
/// The longest payload before that.
pub(crate) const LONGEST_GREETING: usize = 64 << 10;
/// A frame must be written in this time; they are small.
const WRITE: Duration = Duration::from_secs(2);

/// The moment `wait` from now, however long `wait` is.
pub(crate) fn after(wait: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(wait)
        .unwrap_or_else(|| now + Duration::from_secs(1 << 31))
}

/// Sockets whose reads and writes return every [`TICK`].
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TICK))?;
    stream.set_write_timeout(Some(TICK))
}

/// Whether an error only says that nothing moved for now.
pub(crate) fn again(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
    )
}

pub(crate) fn closed() -> io::Error {
    io::Error::new(ErrorKind::UnexpectedEof, "its connection closed")
}

/// Waits until `events` of `poll(2)` happen on one of the sockets, at most for `wait`. Whether one did.
pub(crate) fn poll(sockets: &[(RawFd, libc::c_short)], wait: Duration) -> bool {
    let one = |&(fd, events)| libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let mut list: Vec<libc::pollfd> = sockets.iter().map(one).collect();
    let wait = wait.as_millis().min(60_000) as libc::c_int;
    // SAFETY: the pointer and the length are those of a list that lives during the call.
    unsafe { libc::poll(list.as_mut_ptr(), list.len() as libc::nfds_t, wait) > 0 }
}

pub(crate) fn wait_readable(socket: &impl AsRawFd, wait: Duration) -> bool {
    poll(&[(socket.as_raw_fd(), libc::POLLIN)], wait)
}

/// Moves all of `length` bytes by `step`, which gets the number of those that have moved already.
fn move_all(
    length: usize,
    until: Instant,
    mut step: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<()> {
    let mut moved = 0;
    while moved < length {
        match step(moved) {
            Ok(0) => return Err(closed()),
            Ok(n) => moved += n,
            Err(e) if again(&e) => {}
            Err(e) => return Err(e),
        }
        if moved < length && Instant::now() >= until {
            return Err(io::Error::new(
                ErrorKind::TimedOut,
                format!("{moved} of {length} bytes moved in time"),
            ));
        }
    }
    Ok(())
}

pub(crate) fn read_full(
    mut stream: &TcpStream,
    bytes: &mut [u8],
    until: Instant,
) -> io::Result<()> {
    move_all(bytes.len(), until, |at| stream.read(&mut bytes[at..]))
}

pub(crate) fn write_full(mut stream: &TcpStream, bytes: &[u8], until: Instant) -> io::Result<()> {
    move_all(bytes.len(), until, |at| stream.write(&bytes[at..]))
}

pub(crate) fn frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    Put::default().u32(payload.len()).u8(kind).bytes(payload).0
}

/// A frame whose payload has at most `limit` bytes.
pub(crate) fn read_frame(
    stream: &TcpStream,
    limit: usize,
    until: Instant,
) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    read_full(stream, &mut head, until)?;
    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    if length > limit {
        let text = format!("it announces {length} bytes where {limit} are allowed");
        return Err(io::Error::new(ErrorKind::InvalidData, text));
    }
    let mut payload = vec![0; length];
    read_full(stream, &mut payload, until)?;
    Ok((head[4], payload))
}

/// The sending half of a connection whose frames come from several threads.
pub(crate) struct Pen(Mutex<TcpStream>);

impl Pen {
    pub(crate) fn new(stream: &TcpStream) -> io::Result<Self> {
        stream.try_clone().map(|s| Self(Mutex::new(s)))
    }

    pub(crate) fn send(&self, kind: u8, payload: &[u8]) -> io::Result<()> {
        let stream = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = write_full(&stream, &frame(kind, payload), after(WRITE));
        if sent.is_err() {
            // Half a frame may be out: nothing that follows would be understood.
            let _ = stream.shutdown(Shutdown::Write);
        }
        sent
    }

    /// Nothing follows. What was sent arrives, and the other side may still answer.
    pub(crate) fn close(&self) {
        let _ = self
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .shutdown(Shutdown::Write);
    }
}

/// Writes a message.
#[derive(Default)]
pub(crate) struct Put(pub(crate) Vec<u8>);

impl Put {
    pub(crate) fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(crate) fn u8(self, value: u8) -> Self {
        self.bytes(&[value])
    }

    /// Sizes and ranks; all have far less than 32 bits.
    pub(crate) fn u32(self, value: usize) -> Self {
        self.bytes(&(value as u32).to_le_bytes())
    }

    pub(crate) fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    /// Bytes with their length before them.
    pub(crate) fn block(self, bytes: &[u8]) -> Self {
        self.u32(bytes.len()).bytes(bytes)
    }

    pub(crate) fn text(self, text: &str) -> Self {
        self.block(text.as_bytes())
    }
}

/// A message that is not what it should be.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a message is malformed")
    }
}

/// Reads a message.
pub(crate) struct Get<'a>(pub(crate) &'a [u8]);

impl<'a> Get<'a> {
    pub(crate) fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.bytes(N)?.try_into().map_err(|_| Malformed)
    }

    pub(crate) fn u32(&mut self) -> Result<usize, Malformed> {
        self.array().map(|bytes| u32::from_le_bytes(bytes) as usize)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn block(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u32()?;
        self.bytes(length)
    }

    pub(crate) fn text(&mut self) -> Result<String, Malformed> {
        // Control characters have no place in names, and would reach a terminal.
        let text = String::from_utf8(self.block()?.to_vec()).map_err(|_| Malformed)?;
        if text.chars().any(char::is_control) {
            Err(Malformed)
        } else {
            Ok(text)
        }
    }

    /// A number of parts to come, each of at least `smallest` bytes.
    pub(crate) fn count(&mut self, smallest: usize) -> Result<usize, Malformed> {
        let count = self.u32()?;
        if count > self.0.len() / smallest {
            Err(Malformed)
        } else {
            Ok(count)
        }
    }

    pub(crate) fn end(self) -> Result<(), Malformed> {
        if self.0.is_empty() {
            Ok(())
        } else {
            Err(Malformed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let two = listener.accept().unwrap().0;
        prepare(&one).unwrap();
        prepare(&two).unwrap();
        (one, two)
    }

    #[test]
    fn messages_come_back() {
        let put = Put::default()
            .u8(7)
            .u32(9)
            .u64(1 << 40)
            .text("grün")
            .block(&[1, 2])
            .u32(2)
            .bytes(&[3, 4]);
        let mut get = Get(&put.0);
        assert_eq!(get.array::<1>().unwrap(), [7]);
        assert_eq!(get.u32().unwrap(), 9);
        assert_eq!(get.u64().unwrap(), 1 << 40);
        assert_eq!(get.text().unwrap(), "grün");
        assert_eq!(get.block().unwrap(), [1, 2]);
        assert_eq!(get.count(1).unwrap(), 2);
        assert_eq!(get.bytes(2).unwrap(), [3, 4]);
        assert!(get.end().is_ok());
    }

    #[test]
    fn hostile_messages_are_malformed() {
        let huge = [0xff; 4];
        assert_eq!(Get(&huge).text(), Err(Malformed));
        assert_eq!(Get(&huge).block(), Err(Malformed));
        assert_eq!(Get(&huge).count(1), Err(Malformed));
        assert_eq!(Get(&huge[..3]).u32(), Err(Malformed));
        assert_eq!(Get(&[2, 0, 0, 0, 0xc3, 0x28]).text(), Err(Malformed));
        assert_eq!(Get(&[1, 0, 0, 0, 0x1b]).text(), Err(Malformed));
        assert_eq!(Get(&[0]).end(), Err(Malformed));
        // Every cut of a good message.
        let good = Put::default().u32(3).text("abc").u64(5).0;
        for length in 0..good.len() {
            let mut get = Get(&good[..length]);
            let all = (|| Ok((get.u32()?, get.text()?, get.u64()?)))();
            assert_eq!(all, Err::<(usize, String, u64), _>(Malformed));
        }
    }

    #[test]
    fn frames() {
        let (one, two) = pair();
        let pen = Pen::new(&one).unwrap();
        pen.send(5, b"hello").unwrap();
        let soon = || after(Duration::from_secs(5));
        assert_eq!(read_frame(&two, 5, soon()).unwrap(), (5, b"hello".to_vec()));
        pen.send(5, b"hello").unwrap();
        assert_eq!(
            read_frame(&two, 4, soon()).unwrap_err().kind(),
            ErrorKind::InvalidData
        );
        // Four gigabytes are announced, none are allocated.
        let (one, two) = pair();
        write_full(&one, &[0xff; 5], soon()).unwrap();
        assert_eq!(
            read_frame(&two, LONGEST, soon()).unwrap_err().kind(),
            ErrorKind::InvalidData
        );
        // Half a frame, and then nothing; half a frame, and then the end.
        let (one, two) = pair();
        write_full(&one, &frame(1, b"hello")[..7], soon()).unwrap();
        let soonest = after(Duration::from_millis(1));
        assert_eq!(
            read_frame(&two, 9, soonest).unwrap_err().kind(),
            ErrorKind::TimedOut
        );
        drop(one);
        assert_eq!(
            read_frame(&two, 9, soon()).unwrap_err().kind(),
            ErrorKind::UnexpectedEof
        );
    }

    #[test]
    fn no_wait_is_too_long() {
        assert!(after(Duration::MAX) > Instant::now());
    }
}
