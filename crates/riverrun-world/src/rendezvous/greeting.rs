//! The messages of a rank that joins, and of rank 0's answer.

use crate::handshake::unwrapped;
use crate::token::{Bytes32, Fingerprint};
use crate::wire::{Get, Malformed, Put};
use std::net::{IpAddr, SocketAddr};

/// One rank as the others know it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Peer {
    /// Its rank.
    pub rank: usize,
    /// The name of its machine.
    pub host: String,
    /// The number of its process there.
    pub process: u32,
    /// Where it takes connections of other ranks; `None` in place of an address of the machine that rank 0 is on.
    pub(crate) ip: Option<IpAddr>,
    pub(crate) port: u16,
}

impl std::fmt::Display for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "rank {} (host {}, process {})",
            self.rank, self.host, self.process
        )
    }
}

fn host_name() -> String {
    let mut name = [0_u8; 256];
    // SAFETY: the pointer and the length are those of the array; the name ends with a zero, or with the array.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let end = name.iter().position(|b| *b == 0).unwrap_or(0);
    String::from_utf8_lossy(&name[..end])
        .chars()
        .filter(|c| !c.is_control())
        .collect()
}

impl Peer {
    pub(super) fn here(rank: usize, port: u16) -> Self {
        Self {
            rank,
            host: host_name(),
            process: std::process::id(),
            ip: None,
            port,
        }
    }

    fn put(&self, put: Put) -> Put {
        let ip = self.ip.map_or(String::new(), |ip| ip.to_string());
        put.u32(self.rank)
            .text(&self.host)
            .u32(self.process as usize)
            .text(&ip)
            .u32(self.port.into())
    }

    fn get(get: &mut Get<'_>) -> Result<Self, Malformed> {
        let (rank, host, process, ip, port) =
            (get.u32()?, get.text()?, get.u32()?, get.text()?, get.u32()?);
        let ip = if ip.is_empty() {
            None
        } else {
            Some(ip.parse().map_err(|_| Malformed)?)
        };
        Ok(Self {
            rank,
            host,
            process: process as u32,
            ip,
            port: port.try_into().map_err(|_| Malformed)?,
        })
    }
}

/// From a rank to rank 0.
pub(super) struct Greeting {
    pub(super) peer: Peer,
    pub(super) size: usize,
    pub(super) agree: Vec<(String, Fingerprint)>,
}

impl Greeting {
    pub(super) fn encode(&self) -> Vec<u8> {
        let put = self
            .peer
            .put(Put::default())
            .u32(self.size)
            .u32(self.agree.len());
        self.agree
            .iter()
            .fold(put, |put, (name, hash)| put.text(name).bytes(&hash.0))
            .0
    }

    /// A greeting that came `from` there.
    pub(super) fn decode(bytes: &[u8], from: SocketAddr) -> Result<Self, Malformed> {
        let mut get = Get(bytes);
        let mut peer = Peer::get(&mut get)?;
        // A loopback address means nothing elsewhere.
        peer.ip = Some(unwrapped(from.ip())).filter(|ip| !ip.is_loopback());
        let size = get.u32()?;
        let mut agree = Vec::new();
        for _ in 0..get.count(36)? {
            agree.push((get.text()?, Fingerprint(get.array()?)));
        }
        get.end()?;
        Ok(Self { peer, size, agree })
    }

    /// The names of what two ranks differ in.
    pub(super) fn differences(&self, other: &Self) -> Vec<String> {
        let mut names = Vec::new();
        if self.size != other.size {
            names.push(format!(
                "the number of ranks ({} and {})",
                self.size, other.size
            ));
        }
        for (one, two) in [(self, other), (other, self)] {
            for (name, hash) in &one.agree {
                let theirs = two.agree.iter().find(|(n, _)| n == name);
                if theirs.is_none_or(|(_, h)| h != hash) && !names.contains(name) {
                    names.push(name.clone());
                }
            }
        }
        names
    }
}

/// From rank 0 to all ranks, once all have joined.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Start {
    /// Random: connections between ranks belong to it, so that those of an earlier start are strangers.
    pub(crate) session: Bytes32,
    pub(crate) blob: Vec<u8>,
    pub(crate) peers: Vec<Peer>,
}

impl Start {
    pub(super) fn encode(&self) -> Vec<u8> {
        let put = Put::default()
            .bytes(&self.session)
            .block(&self.blob)
            .u32(self.peers.len());
        self.peers.iter().fold(put, |put, peer| peer.put(put)).0
    }

    pub(super) fn decode(bytes: &[u8], size: usize) -> Result<Self, Malformed> {
        let mut get = Get(bytes);
        let (session, blob) = (get.array()?, get.block()?.to_vec());
        let count = get.count(20)?;
        let peers = (0..count)
            .map(|_| Peer::get(&mut get))
            .collect::<Result<Vec<_>, _>>()?;
        get.end()?;
        let in_order = peers.iter().map(|p| p.rank).eq(0..size);
        if in_order {
            Ok(Self {
                session,
                blob,
                peers,
            })
        } else {
            Err(Malformed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn greeting(size: usize, agree: &[(&str, u128)]) -> Greeting {
        let agree = agree
            .iter()
            .map(|(name, hash)| (name.to_string(), (*hash).into()))
            .collect();
        Greeting {
            peer: Peer::here(1, 99),
            size,
            agree,
        }
    }

    #[test]
    fn greetings_come_back() {
        let sent = greeting(3, &[("weights", 7)]);
        let bytes = sent.encode();
        let came = Greeting::decode(&bytes, "[::ffff:10.0.0.7]:5".parse().unwrap()).unwrap();
        assert_eq!(came.peer.ip, Some("10.0.0.7".parse().unwrap()));
        assert_eq!((came.peer.rank, came.peer.port, came.size), (1, 99, 3));
        assert_eq!(came.agree, sent.agree);
        let local = Greeting::decode(&bytes, "127.0.0.1:5".parse().unwrap()).unwrap();
        assert_eq!(local.peer.ip, None);
        for cut in 0..bytes.len() {
            assert!(Greeting::decode(&bytes[..cut], "127.0.0.1:5".parse().unwrap()).is_err());
        }
    }

    #[test]
    fn starts_come_back() {
        let peers = vec![
            Peer::here(0, 1),
            Peer {
                ip: Some("::1".parse().unwrap()),
                ..Peer::here(1, 2)
            },
        ];
        let start = Start {
            session: [3; 32],
            blob: vec![1, 2, 3],
            peers,
        };
        let bytes = start.encode();
        assert_eq!(Start::decode(&bytes, 2), Ok(start));
        assert_eq!(Start::decode(&bytes, 3), Err(Malformed));
        for cut in 0..bytes.len() {
            assert!(Start::decode(&bytes[..cut], 2).is_err());
        }
    }

    #[test]
    fn differences_have_names() {
        let here = greeting(2, &[("configuration", 1), ("weights", 2)]);
        assert!(
            here.differences(&greeting(2, &[("weights", 2), ("configuration", 1)]))
                .is_empty()
        );
        assert_eq!(
            here.differences(&greeting(2, &[("configuration", 3), ("weights", 2)])),
            ["configuration"]
        );
        let far = greeting(3, &[("weights", 1), ("data", 1)]);
        assert_eq!(
            here.differences(&far),
            [
                "the number of ranks (2 and 3)",
                "configuration",
                "weights",
                "data"
            ]
        );
    }
}
