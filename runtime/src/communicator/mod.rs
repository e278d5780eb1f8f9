//! Devices that compute parts of one result and add them up: tensor parallelism within a process.
//!
//! Each device is a rank. Each rank has a [`Communicator`] and a thread of its own, and all ranks ask for the same sums in
//! the same order. GPUs add up by NCCL, which is looked for when a group is made; emulated devices meet on the host.
//!
//! * `mod.rs`: [`Communicator`].
//! * `group.rs`: what ranks know of each other.
//! * `host.rs`: sums over emulated devices.
//! * `nccl.rs`: sums over GPUs.
//! * `error.rs`: [`CommunicatorError`].
//!
//! ```
//! use silumin_codegen::arch::Arch;
//! use silumin_runtime::communicator::Communicator;
//! use silumin_runtime::device::Device;
//! use silumin_runtime::prepare::Source;
//!
//! let devices = [Device::emulated(Arch::Sm100a), Device::emulated(Arch::Sm100a)];
//! let ranks = Communicator::all(&devices)?;
//! std::thread::scope(|scope| {
//!     for rank in &ranks {
//!         scope.spawn(move || {
//!             // 1 on rank 0, 2 on rank 1, in bf16.
//!             let own = [0x3F80u16, 0x4000][rank.rank()];
//!             let buffer = rank.device().upload(&own.to_le_bytes()).unwrap();
//!             rank.all_reduce(&rank.device().stream(), &buffer, Source::Bf16).unwrap();
//!             assert_eq!(buffer.download().unwrap(), 0x4040u16.to_le_bytes()); // 3
//!         });
//!     }
//! });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod group;
mod host;
#[cfg(feature = "cuda")]
mod nccl;

pub use error::CommunicatorError;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::device::{Buffer, Device, Stream};
use crate::prepare::Source;
use group::Group;
use host::Meeting;

/// How long a rank waits for others if nothing else is asked for.
const LIMIT: Duration = Duration::from_secs(60);

/// A rank of a group. Cloning it is cheap; the rank leaves its group when the last clone is dropped.
#[derive(Clone)]
pub struct Communicator {
    rank: Arc<Rank>,
}

struct Rank {
    number: usize,
    device: Device,
    group: Arc<Group>,
    sums: Sums,
}

/// How a rank adds up.
enum Sums {
    Emulated(Arc<Meeting>),
    #[cfg(feature = "cuda")]
    Nccl(nccl::Rank),
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(rank {} of {} on {})", self.rank(), self.ranks(), self.device())
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        self.group.leave(self.number);
    }
}

impl Communicator {
    /// The ranks of a group, one for each device, in order. A rank waits for others for a minute.
    ///
    /// # Errors
    ///
    /// No devices, one that comes twice, GPUs beside emulated devices; for GPUs that NCCL is missing, and what it says.
    pub fn all(devices: &[Device]) -> Result<Vec<Self>, CommunicatorError> {
        Self::all_within(devices, LIMIT)
    }

    /// The ranks of a group, each of which waits for others for `limit`. Give emulated devices time to emulate.
    ///
    /// # Errors
    ///
    /// As [`Communicator::all`].
    pub fn all_within(devices: &[Device], limit: Duration) -> Result<Vec<Self>, CommunicatorError> {
        let Some(first) = devices.first() else { return Err(CommunicatorError::NoDevices) };
        for (second, device) in devices.iter().enumerate() {
            if let Some(first) = devices[..second].iter().position(|other| other == device) {
                return Err(CommunicatorError::SameDevice { first, second, device: device.numbered() });
            }
            if device.is_emulated() != first.is_emulated() {
                let (first, other) = (first.numbered(), device.numbered());
                return Err(CommunicatorError::Mixed { first, rank: second, other });
            }
        }
        let words = devices.iter().map(Device::numbered);
        let group = Arc::new(Group::new(words.collect(), limit));
        let sums: Vec<Sums> = match first.is_emulated() {
            true => {
                let meeting = Arc::new(Meeting::new(devices.len()));
                devices.iter().map(|_| Sums::Emulated(meeting.clone())).collect()
            }
            #[cfg(feature = "cuda")]
            false => nccl::join(devices, &group)?.into_iter().map(Sums::Nccl).collect(),
            #[cfg(not(feature = "cuda"))]
            false => Vec::new(),
        };
        let ranks = sums.into_iter().zip(devices).enumerate().map(|(number, (sums, device))| {
            let rank = Rank { number, device: device.clone(), group: group.clone(), sums };
            Communicator { rank: Arc::new(rank) }
        });
        Ok(ranks.collect())
    }

    /// The rank's number, from 0.
    #[must_use]
    pub fn rank(&self) -> usize {
        self.rank.number
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.rank.group.ranks()
    }

    /// The rank's device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.rank.device
    }

    /// Replaces 16-bit numbers by their sums over all ranks. All ranks call this for buffers of one length, in the same
    /// order, each from a thread of its own.
    ///
    /// On GPUs the sum is enqueued: wait for it with [`Communicator::wait`]. A stream that captures a CUDA graph takes it.
    /// Emulated devices have the sum when this returns, rounded once.
    ///
    /// # Errors
    ///
    /// A buffer or stream of another device; what NCCL says; on emulated devices a rank that is late or has left.
    pub fn all_reduce(
        &self,
        stream: &Stream,
        buffer: &Buffer,
        source: Source,
    ) -> Result<(), CommunicatorError> {
        let Rank { number, device, group, sums } = &*self.rank;
        let found = [("buffer", buffer.device() == device), ("stream", stream.device() == device)];
        if let Some((what, _)) = found.iter().find(|(_, own)| !own) {
            return Err(CommunicatorError::Foreign { what, device: device.numbered(), rank: *number });
        }
        group.check()?;
        match sums {
            Sums::Emulated(meeting) => {
                group.ask(*number);
                let sum = meeting.add(group, *number, buffer.download()?, source)?;
                Ok(buffer.write(&sum)?)
            }
            #[cfg(feature = "cuda")]
            Sums::Nccl(rank) => rank.all_reduce(stream, buffer, source, || group.ask(*number)),
        }
    }

    /// Waits until all work on the stream is done, the sums included, for no longer than the group's limit. Use it in place
    /// of [`Stream::synchronize`], which waits for a rank that never comes for ever.
    ///
    /// # Errors
    ///
    /// [`CommunicatorError::Late`], [`CommunicatorError::Left`], [`CommunicatorError::Unfinished`], what NCCL and the
    /// driver say. Sums that were under way are given up then, and the group cannot be used any more.
    pub fn wait(&self, stream: &Stream) -> Result<(), CommunicatorError> {
        let Rank { group, sums, .. } = &*self.rank;
        group.check()?;
        match sums {
            Sums::Emulated(_) => Ok(stream.synchronize()?),
            #[cfg(feature = "cuda")]
            Sums::Nccl(rank) => rank.wait(stream),
        }
    }

    /// Records that a graph with a sum in it was launched.
    #[cfg(feature = "cuda")]
    pub(crate) fn replayed(&self) -> Result<(), CommunicatorError> {
        self.rank.group.check()?;
        self.rank.group.ask(self.rank());
        Ok(())
    }
}
