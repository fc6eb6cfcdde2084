//! Two processes find out, before anything else, whether they belong to the same world.
//!
//! ```text
//! caller   magic, version, world, number of the caller
//! answerer magic, version, world, number of the answerer, proof of the answerer
//! caller   frame: greeting, proof of the caller
//! ```
//!
//! A world is a hash of the run's name. The numbers are random, and used once. A proof is an HMAC-SHA256 under the token over
//! both numbers, the caller's also over its greeting. A peer without the token learns only that
//! there is a world, and can replay nothing. What follows on the connection is neither encrypted nor signed.

use crate::token::{self, Bytes32, Token};
use crate::wire::{self, Put};
use crate::{Error, Result};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const MAGIC: [u8; 8] = *b"RIVRWRLD";
/// Data travel in the order of bytes of the hosts, which must be the same.
const VERSION: u32 = if cfg!(target_endian = "big") {
    1 | 1 << 31
} else {
    1
};
/// Magic and version.
const HEAD: usize = 12;
const GREETING: u8 = 0;
/// The time limit of a whole handshake.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// The most handshakes at once. Further connections are closed, and may be made again.
const CALLERS: usize = 1024;

const ANSWERER: &str = "answerer";
const CALLER: &str = "caller";

/// What both sides must know.
#[derive(Clone)]
pub(crate) struct Membership {
    pub(crate) token: Token,
    /// The hash of the world's name.
    pub(crate) world: Bytes32,
}

/// Why a peer was not accepted.
#[derive(Debug)]
pub(crate) enum Stranger {
    /// It belongs to something else, or nothing came of it.
    Elsewhere(String),
    /// It claims to belong to this world, but must not.
    Wrong(String),
}

fn elsewhere(text: impl std::fmt::Display) -> Stranger {
    Stranger::Elsewhere(text.to_string())
}

impl Membership {
    fn preamble(&self, number: &Bytes32) -> Vec<u8> {
        let put = Put::default().bytes(&MAGIC).bytes(&VERSION.to_le_bytes());
        put.bytes(&self.world).bytes(number).0
    }

    /// The other side's number. The first bytes suffice to recognize what speaks something else.
    fn read_preamble(&self, stream: &TcpStream, until: Instant) -> Result<Bytes32, Stranger> {
        let mut head = [0; HEAD];
        wire::read_full(stream, &mut head, until).map_err(elsewhere)?;
        if head[..MAGIC.len()] != MAGIC {
            return Err(elsewhere("it speaks another protocol"));
        }
        let mut rest = [0; 64];
        wire::read_full(stream, &mut rest, until).map_err(elsewhere)?;
        if rest[..32] != self.world {
            return Err(elsewhere("it belongs to another run"));
        }
        if head[MAGIC.len()..] != VERSION.to_le_bytes() {
            return Err(Stranger::Wrong(
                "it is another version of this program".into(),
            ));
        }
        let mut number = [0; 32];
        number.copy_from_slice(&rest[32..]);
        Ok(number)
    }

    /// The caller's side. An answer to the greeting is still to come.
    pub(crate) fn call(&self, stream: &TcpStream, greeting: &[u8]) -> Result<(), Stranger> {
        let until = wire::after(PATIENCE);
        wire::prepare(stream).map_err(elsewhere)?;
        let mine = token::random().map_err(elsewhere)?;
        wire::write_full(stream, &self.preamble(&mine), until).map_err(elsewhere)?;
        let theirs = self.read_preamble(stream, until)?;
        let mut proof = [0; 32];
        wire::read_full(stream, &mut proof, until).map_err(elsewhere)?;
        if !self
            .token
            .accepts(&proof, ANSWERER, &[&self.world, &mine, &theirs])
        {
            let text = format!("it has another token ({})", Token::VARIABLE);
            return Err(Stranger::Wrong(text));
        }
        let proof = self
            .token
            .prove(CALLER, &[&self.world, &mine, &theirs, greeting]);
        let payload = [greeting, &proof].concat();
        wire::write_full(stream, &wire::frame(GREETING, &payload), until).map_err(elsewhere)
    }

    /// The answerer's side: a greeting by somebody who knows the token.
    pub(crate) fn answer(&self, stream: &TcpStream) -> Result<Vec<u8>, Stranger> {
        let until = wire::after(PATIENCE);
        wire::prepare(stream).map_err(elsewhere)?;
        let mine = token::random().map_err(elsewhere)?;
        let theirs = self.read_preamble(stream, until);
        if let Ok(_) | Err(Stranger::Wrong(_)) = &theirs {
            // The peer needs our version for its error message.
            let number = theirs.as_ref().unwrap_or(&mine);
            let proof = self.token.prove(ANSWERER, &[&self.world, number, &mine]);
            let answer = [self.preamble(&mine), proof.to_vec()].concat();
            wire::write_full(stream, &answer, until).map_err(elsewhere)?;
        } else {
            let _ = wire::write_full(stream, &self.preamble(&mine), until);
        }
        let theirs = theirs?;
        let (kind, mut payload) = match wire::read_frame(stream, wire::LONGEST_GREETING, until) {
            Ok(frame) => frame,
            Err(e) if e.kind() == ErrorKind::UnexpectedEof => {
                let text = format!(
                    "it hung up before its greeting; has it another token ({})?",
                    Token::VARIABLE
                );
                return Err(Stranger::Wrong(text));
            }
            Err(e) => return Err(elsewhere(e)),
        };
        let Some(length) = payload.len().checked_sub(32).filter(|_| kind == GREETING) else {
            return Err(elsewhere("it sent no greeting"));
        };
        let proof = payload.split_off(length);
        if !self
            .token
            .accepts(&proof, CALLER, &[&self.world, &theirs, &mine, &payload])
        {
            let text = format!("it has another token ({})", Token::VARIABLE);
            return Err(Stranger::Wrong(text));
        }
        Ok(payload)
    }
}

/// Listens on both families of addresses where the machine has them, or only on its own.
pub(crate) fn listen(only_here: bool, port: u16) -> std::io::Result<TcpListener> {
    if only_here {
        return TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    }
    TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).or_else(|e| match e.kind() {
        ErrorKind::AddrInUse => Err(e),
        _ => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
    })
}

/// IPv4 addresses as themselves where a socket of both families wraps them.
pub(crate) fn unwrapped(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => v6.to_ipv4_mapped().map_or(ip, IpAddr::V4),
        v4 => v4,
    }
}

pub(crate) fn thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let builder = std::thread::Builder::new().name(name.into());
    builder
        .spawn(work)
        .map(drop)
        .map_err(|e| Error::Join(format!("cannot start a thread: {e}")))
}

/// One caller in its handshake; dropped when that is over.
pub(crate) struct Caller(Arc<AtomicUsize>);

impl Drop for Caller {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Runs every handshake on its own thread, so that a silent peer delays no other, until `over`.
pub(crate) fn open_door(
    listener: TcpListener,
    over: impl Fn() -> bool + Send + 'static,
    serve: impl Fn(TcpStream, SocketAddr, Caller) + Send + Sync + 'static,
) -> Result<()> {
    listener
        .set_nonblocking(true)
        .map_err(|e| Error::Join(format!("cannot listen: {e}")))?;
    let (serve, callers) = (Arc::new(serve), Arc::new(AtomicUsize::new(0)));
    thread("world-door", move || {
        while !over() {
            let Ok((stream, from)) = listener.accept() else {
                wire::wait_readable(&listener, wire::TICK);
                continue;
            };
            let before = callers.fetch_add(1, Ordering::AcqRel);
            let caller = Caller(callers.clone());
            if before < CALLERS {
                let serve = serve.clone();
                let from = SocketAddr::new(unwrapped(from.ip()), from.port());
                // No thread could be started: the connection is closed.
                let _ = thread("world-caller", move || serve(stream, from, caller));
            }
        }
    })
}
