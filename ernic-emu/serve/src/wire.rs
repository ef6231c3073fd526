//! What is on the wire: the in-band endpoint with the S3 service on it, a TAP, a capture of all of it.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use ernic_emu::{
    link::{Link, LinkPoll, RxSink, Sums, TxFrame},
    offload,
};
use s3_proto::{Phase, S3Service};
use tcp_inband::{Endpoint, FrameSink, Stats, exec::Executor};

use crate::{
    cable::LinkFault,
    pcap::Pcap,
    tap::{Tap, TapError},
};

/// Frames that one turn takes from the TAP.
const TAP_BUDGET: usize = 64;

/// The endpoint, and the tasks that serve its connections.
struct InBand {
    endpoint: Endpoint,
    executor: Executor,
    service: S3Service,
}

/// Everything at the other end of the guest's cable.
pub struct Wire {
    in_band: Option<InBand>,
    tap: Option<Tap>,
    /// The guest had no buffer for a frame of the TAP, which stays where it is.
    tap_blocked: bool,
    /// Takes the link down; a request that did is answered when it is up again.
    fault: LinkFault,
    pcap: Option<Pcap>,
    /// The time of the current turn.
    now: Duration,
    segment: Vec<u8>,
    copy: Vec<u8>,
    tap_frame: Vec<u8>,
}

impl std::fmt::Debug for Wire {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wire").field("tap", &self.tap).field("pcap", &self.pcap.is_some()).finish_non_exhaustive()
    }
}

impl Wire {
    /// A wire with nothing on it.
    #[must_use]
    pub fn new() -> Self {
        Self {
            in_band: None,
            tap: None,
            tap_blocked: false,
            fault: LinkFault::default(),
            pcap: None,
            now: Duration::ZERO,
            segment: Vec::new(),
            copy: Vec::new(),
            tap_frame: Vec::new(),
        }
    }

    /// Puts the endpoint on the wire; `service` answers its connections. `notify` is called, from any thread, when a
    /// task has become ready while none was.
    pub fn serve(&mut self, endpoint: Endpoint, service: S3Service, notify: Arc<dyn Fn() + Send + Sync>) {
        self.in_band = Some(InBand { endpoint, executor: Executor::new(notify), service });
    }

    /// Sends the frames that are not for the endpoint to `tap`, and its frames to the guest.
    pub fn attach(&mut self, tap: Tap) {
        self.tap_frame = vec![0; crate::tap::MAX_FRAME];
        self.tap = Some(tap);
    }

    /// Records every frame.
    pub fn record(&mut self, pcap: Pcap) {
        self.pcap = Some(pcap);
    }

    /// The TAP, to wait for its frames; `None` while the guest could not take one.
    #[must_use]
    pub fn readable_tap(&self) -> Option<&Tap> {
        self.tap.as_ref().filter(|_| !self.tap_blocked)
    }

    /// Takes no answer to the guest from the moment on that `fault` asks for the link to go down.
    pub fn heed(&mut self, fault: LinkFault) {
        self.fault = fault;
    }

    /// Whether requests may be under way, or come with the next frames: the end of a handshake and a request may come together.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.in_band.as_ref().is_some_and(|in_band| !in_band.executor.is_empty() || in_band.endpoint.is_connected())
    }

    /// What the endpoint has done, if there is one.
    #[must_use]
    pub fn endpoint_stats(&self) -> Option<Stats> {
        self.in_band.as_ref().map(|in_band| in_band.endpoint.stats())
    }

    /// The interface was deleted: its descriptor would be readable, with an error, for ever.
    fn lose_tap(&mut self, error: &TapError) {
        tracing::error!(%error, "the server goes on without it");
        self.tap = None;
    }

    /// When the wire has to be polled at the latest, `now` being the time.
    #[must_use]
    pub fn deadline(&self, now: Duration) -> Option<Duration> {
        let endpoint = self.in_band.as_ref().and_then(|in_band| in_band.endpoint.poll_at());
        let flush =
            self.pcap.as_ref().and_then(Pcap::flush_at).map(|at| now + at.saturating_duration_since(Instant::now()));
        [endpoint, flush].into_iter().flatten().min()
    }
}

impl Default for Wire {
    fn default() -> Self {
        Self::new()
    }
}

/// Hands the endpoint's frames to the guest, and to the capture.
struct Tee<'a> {
    rx: &'a mut dyn RxSink,
    pcap: Option<&'a mut Pcap>,
}

impl FrameSink for Tee<'_> {
    fn room(&self) -> usize {
        self.rx.room()
    }

    fn send(&mut self, len: usize, fill: &mut dyn FnMut(&mut [u8])) {
        let pcap = &mut self.pcap;
        // The endpoint's own stack computed them.
        self.rx.deliver(len, Sums::Right, &mut |frame| {
            fill(frame);
            if let Some(pcap) = pcap {
                pcap.record(SystemTime::now(), frame);
            }
        });
    }
}

impl Link for Wire {
    fn transmit(&mut self, frame: &mut TxFrame<'_>) {
        if let Some(pcap) = &mut self.pcap {
            // The capture shows what a wire would carry; the endpoint takes the frame as the guest made it.
            self.copy.clear();
            self.copy.extend_from_slice(frame.bytes);
            let mut whole = TxFrame { bytes: &mut self.copy, offload: frame.offload };
            offload::materialize(&mut whole, &mut self.segment, &mut |part| pcap.record(SystemTime::now(), part));
        }
        if let Some(in_band) = &mut self.in_band
            && in_band.endpoint.wants(frame.bytes)
        {
            in_band.endpoint.ingress(self.now, frame.bytes);
        } else if let Some(tap) = &mut self.tap {
            let mut gone = None;
            offload::materialize(frame, &mut self.segment, &mut |part| {
                if gone.is_none() {
                    gone = tap.write(part).err();
                }
            });
            if let Some(error) = gone {
                self.lose_tap(&error);
            }
        }
    }

    fn poll(&mut self, now: Duration, rx: &mut dyn RxSink) -> LinkPoll {
        self.now = now;
        let mut more = false;
        if let Some(in_band) = &mut self.in_band {
            let InBand { endpoint, executor, service } = in_band;
            while executor.has_room()
                && let Some(stream) = endpoint.accept()
            {
                let service = service.clone();
                let activity = stream.activity();
                let on = move |phase| match phase {
                    Phase::Started => activity.request_started(),
                    Phase::Finished => activity.request_finished(),
                };
                let task = async move {
                    if let Err(error) = service.serve_with(stream, on).await {
                        // The peer's doing: a reset, a garbled head, half a body.
                        tracing::debug!(%error, "connection ended");
                    }
                };
                if executor.spawn(task).is_err() {
                    break;
                }
            }
            executor.run_ready();
            if self.fault.is_pending() {
                return LinkPoll { more: true };
            }
            let polled = endpoint.poll(now, &mut Tee { rx, pcap: self.pcap.as_mut() });
            more |= polled.more || !executor.is_idle();
        }
        let mut gone = None;
        if let Some(tap) = &mut self.tap {
            for left in (0..TAP_BUDGET).rev() {
                self.tap_blocked = rx.room() == 0;
                if self.tap_blocked {
                    break;
                }
                match tap.read(&mut self.tap_frame) {
                    Ok(Some(len)) => {
                        let Some(frame) = self.tap_frame.get(..len) else { break };
                        if let Some(pcap) = &mut self.pcap {
                            pcap.record(SystemTime::now(), frame);
                        }
                        rx.deliver(len, Sums::Unknown, &mut |to| to.copy_from_slice(frame));
                        more |= left == 0;
                    }
                    Ok(None) => break,
                    Err(error) => {
                        gone = Some(error);
                        break;
                    }
                }
            }
        }
        if let Some(error) = gone {
            self.lose_tap(&error);
        }
        if let Some(pcap) = &mut self.pcap {
            pcap.flush_if_due(Instant::now());
        }
        LinkPoll { more }
    }

    fn set_mtu(&mut self, mtu: u32) {
        if let Some(in_band) = &mut self.in_band {
            in_band.endpoint.set_mtu(usize::try_from(mtu).unwrap_or(usize::MAX));
        }
    }

    fn reset(&mut self) {
        if let Some(in_band) = &mut self.in_band {
            in_band.executor.clear();
            in_band.endpoint.reset();
        }
    }
}
