//! The way from rank to rank: NCCL where every rank has a CUDA device of its own and the library, TCP otherwise.

use std::sync::Arc;
#[cfg(feature = "cuda")]
use std::sync::Mutex;

use burn::tensor::Device;
use riverrun::Neighbours;
use riverrun_world::{Ring, Transport, World};

#[cfg(feature = "cuda")]
use super::host;
use super::{Connected, over_world_along_time};
use crate::Error;

/// The variable that chooses the way.
const VARIABLE: &str = "RIVERRUN_TRANSPORT";

/// Connects the ranks of a world, of which each computes on its `device`. `RIVERRUN_TRANSPORT` is `nccl`, `tcp` or `auto`: NCCL
/// where all ranks have it, in one version, and a CUDA device each.
///
/// With the neighbours of this rank in groups of `group` ranks along time, as
/// [`over_world_along_time`](crate::over_world_along_time): their states go the same way.
///
/// The world stays the caller's, to [finish](World::finish) or to [fail](World::fail) after the run.
///
/// # Errors
/// [`Error::World`]; [`Error::Unsupported`] where NCCL was asked for and cannot be had, or for another word than these three.
pub fn connect(
    world: &Arc<World>,
    device: &Device,
    group: usize,
) -> Result<(Connected, Neighbours), Error> {
    let mut ring = Ring::connect(world)?;
    tracing::debug!("the ranks are connected by TCP");
    let own = Offer::of(device);
    let offers = exchange(&mut ring, &own.text())?;
    let offers: Vec<Offer> = offers.iter().map(|text| Offer::read(text)).collect();
    let way = choose(&offers)?;
    #[cfg(feature = "cuda")]
    if let Way::Nccl(version) = &way {
        use riverrun_world::nccl::Library;
        let library = Library::load()?;
        tracing::debug!("all ranks have NCCL {version}");
        let mut id: Vec<f32> = match world.rank() {
            0 => library.unique_id()?.into_iter().map(f32::from).collect(),
            _ => vec![0.0; Library::ID],
        };
        ring.broadcast(&mut id, 0)?;
        let id: Vec<u8> = id.into_iter().map(|byte| byte as u8).collect();
        let (ranks, states) = super::nccl::over_nccl(world.clone(), library, &id, device, group)?;
        let way = format!("NCCL {version}");
        let neighbours = host::neighbours(world, Arc::new(Mutex::new(ring)), group);
        return Ok((Connected { ranks, way }, neighbours.with_stream(states)));
    }
    let reason = match way {
        Way::Tcp(reason) => reason,
        Way::Nccl(_) => unreachable!("without CUDA nobody offers NCCL"),
    };
    let (ranks, neighbours) = over_world_along_time(world.clone(), ring, group);
    let way = format!("TCP, because {reason}");
    Ok((Connected { ranks, way }, neighbours))
}

/// What a rank has.
#[derive(Debug, Clone, PartialEq)]
struct Offer {
    /// `auto`, `nccl` or `tcp`.
    asked: String,
    /// The version of NCCL and the number of the device, or the reason why there is no way by NCCL.
    nccl: Result<[String; 2], String>,
}

impl Offer {
    fn of(device: &Device) -> Self {
        let asked = std::env::var(VARIABLE).unwrap_or_default();
        let asked = if asked.is_empty() {
            "auto".into()
        } else {
            asked
        };
        let nccl = match asked.as_str() {
            "tcp" => Err(format!("{VARIABLE} is tcp")),
            _ => nccl(device),
        };
        Self { asked, nccl }
    }

    fn text(&self) -> String {
        match &self.nccl {
            Ok([version, device]) => format!("{}\n{version}\n{device}", self.asked),
            Err(reason) => format!("{}\n{}", self.asked, reason.replace('\n', " ")),
        }
    }

    fn read(text: &str) -> Self {
        let lines: Vec<&str> = text.split('\n').collect();
        let asked = lines[0].to_string();
        let nccl = match lines[1..] {
            [version, device] => Ok([version, device].map(String::from)),
            [reason] => Err(reason.to_string()),
            _ => Err("it speaks another language".into()),
        };
        Self { asked, nccl }
    }
}

/// The version of NCCL here and the number of the device.
fn nccl(device: &Device) -> Result<[String; 2], String> {
    if riverrun::device::is_cpu(device) {
        return Err("it computes on the CPU".into());
    }
    #[cfg(feature = "cuda")]
    {
        let uuid = riverrun::training::uuid(device).map_err(|error| error.to_string())?;
        let library = riverrun_world::nccl::Library::load().map_err(|error| error.to_string())?;
        let uuid = uuid.map(|byte| format!("{byte:02x}")).concat();
        Ok([library.version(), uuid])
    }
    #[cfg(not(feature = "cuda"))]
    Err("this build is without CUDA".into())
}

#[derive(Debug, PartialEq)]
enum Way {
    /// With its version.
    Nccl(String),
    /// With the reason.
    Tcp(String),
}

/// The way that all ranks can go. All make the same choice from the same offers.
fn choose(offers: &[Offer]) -> Result<Way, Error> {
    for (rank, Offer { asked, .. }) in offers.iter().enumerate() {
        if !["auto", "nccl", "tcp"].contains(&asked.as_str()) {
            let text = format!("{VARIABLE} of rank {rank} is {asked}: one of auto, nccl, tcp");
            return Err(Error::Unsupported(text));
        }
    }
    let found = by_nccl(offers);
    match (found, offers.iter().any(|offer| offer.asked == "nccl")) {
        (Ok(version), _) => Ok(Way::Nccl(version)),
        (Err(reason), false) => Ok(Way::Tcp(reason)),
        (Err(reason), true) => Err(Error::Unsupported(format!(
            "{VARIABLE} is nccl, but {reason}"
        ))),
    }
}

/// The version of NCCL by which all ranks can go.
fn by_nccl(offers: &[Offer]) -> Result<String, String> {
    let mut all: Vec<&[String; 2]> = Vec::new();
    for (rank, Offer { nccl, .. }) in offers.iter().enumerate() {
        let own = nccl
            .as_ref()
            .map_err(|reason| format!("of rank {rank}: {reason}"))?;
        for (other, before) in all.iter().enumerate() {
            if before[0] != own[0] {
                let [a, b] = [&before[0], &own[0]];
                return Err(format!(
                    "rank {other} has NCCL {a} and rank {rank} has NCCL {b}"
                ));
            }
            if before[1] == own[1] {
                return Err(format!("ranks {other} and {rank} share a GPU"));
            }
        }
        all.push(own);
    }
    Ok(all
        .first()
        .map_or_else(String::new, |first| first[0].clone()))
}

/// Bytes of a text that ranks exchange.
const TEXT: usize = 384;

/// The texts of all ranks, cut to a length.
fn exchange(ring: &mut Ring, text: &str) -> Result<Vec<String>, Error> {
    // A character a number, since floats are what a ring carries.
    let mut own: Vec<f32> = text.bytes().take(TEXT).map(f32::from).collect();
    own.resize(TEXT, 0.0);
    let mut all = vec![0.0; TEXT * ring.size()];
    ring.all_gather(&own, &mut all)?;
    let text = |numbers: &[f32]| {
        let bytes: Vec<u8> = numbers.iter().map(|number| *number as u8).collect();
        let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    Ok(all.chunks_exact(TEXT).map(text).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(asked: &str, nccl: Result<[&str; 2], &str>) -> Offer {
        Offer {
            asked: asked.into(),
            nccl: nccl
                .map(|words| words.map(String::from))
                .map_err(String::from),
        }
    }

    #[test]
    fn offers_come_back() {
        for offer in [
            offer("auto", Ok(["2.28.9", "00ff"])),
            offer("nccl", Err("no NCCL was found")),
        ] {
            assert_eq!(Offer::read(&offer.text()), offer);
        }
    }

    #[test]
    fn the_way_is_one_that_all_ranks_can_go() {
        let one = offer("auto", Ok(["2.28.9", "a"]));
        let other = offer("auto", Ok(["2.28.9", "b"]));
        let choose = |offers: [&Offer; 2]| choose(&offers.map(Clone::clone));
        assert_eq!(choose([&one, &other]).unwrap(), Way::Nccl("2.28.9".into()));
        let tcp = |reason: &str| Way::Tcp(reason.into());
        let same = choose([&one, &one]).unwrap();
        assert_eq!(same, tcp("ranks 0 and 1 share a GPU"));
        let old = offer("auto", Ok(["2.21.5", "b"]));
        assert_eq!(
            choose([&one, &old]).unwrap(),
            tcp("rank 0 has NCCL 2.28.9 and rank 1 has NCCL 2.21.5")
        );
        let none = offer("auto", Err("it computes on the CPU"));
        let reason = "of rank 1: it computes on the CPU";
        assert_eq!(choose([&one, &none]).unwrap(), tcp(reason));
        let must = offer("nccl", Ok(["2.28.9", "c"]));
        assert_eq!(choose([&one, &must]).unwrap(), Way::Nccl("2.28.9".into()));
        let error = choose([&must, &none]).unwrap_err().to_string();
        assert_eq!(error, format!("RIVERRUN_TRANSPORT is nccl, but {reason}"));
        let error = choose([&offer("udp", Err("")), &one]).unwrap_err();
        assert!(error.to_string().contains("rank 0 is udp"), "{error}");
    }
}
