//! Requests that concern the device as a whole: features, owner, status, configuration.

use super::{Handled, Outcome, Refusal, Session, refuse};
use crate::message::{ConfigFlags, ConfigSpace, MAX_CONFIG, ProtocolFeatures, Reply, Request};
use heddle_virtio::device::Device;
use heddle_virtio::ring::Features;

/// Minimum and maximum MTU of an Ethernet device (virtio 1.2 §5.1.4.1).
const MTU: core::ops::RangeInclusive<u64> = 68..=65535;

impl Session {
    /// Whether the request may come at all: most belong to a protocol feature.
    pub(super) fn check_negotiated(&self, request: &Request) -> Result<(), Refusal> {
        let needs = match request {
            Request::SendRarp(_) => ProtocolFeatures::RARP,
            Request::NetSetMtu(_) => ProtocolFeatures::MTU,
            Request::SetBackendReqFd => ProtocolFeatures::BACKEND_REQ,
            Request::GetConfig(_) | Request::SetConfig(_) => ProtocolFeatures::CONFIG,
            Request::GetInflightFd(_) | Request::SetInflightFd(_) => ProtocolFeatures::INFLIGHT_SHMFD,
            Request::ResetDevice => ProtocolFeatures::RESET_DEVICE,
            Request::GetMaxMemSlots | Request::AddMemReg(_) | Request::RemMemReg(_) => {
                ProtocolFeatures::CONFIGURE_MEM_SLOTS
            }
            Request::SetStatus(_) | Request::GetStatus => ProtocolFeatures::STATUS,
            _ => ProtocolFeatures::empty(),
        };
        if !self.protocol.contains(needs) {
            refuse!("its protocol feature was not negotiated");
        }
        if matches!(request, Request::Iotlb(_)) && !self.has_iommu() {
            refuse!("ACCESS_PLATFORM was not negotiated");
        }
        Ok(())
    }

    pub(super) fn set_features(&mut self, bits: u64, device: &mut dyn Device) -> Handled {
        let features = Features::from_bits(bits).filter(|&f| self.offer.features.contains(f));
        let Some(features) = features else {
            refuse!("{:#x} was not offered", bits & !self.offer.features.bits());
        };
        let changed = self.features ^ features;
        if self.rings.iter().any(super::ring::Ring::is_started)
            && changed.difference(Features::LOG_ALL) != Features::empty()
        {
            refuse!("features {:#x} change while rings run", changed.bits());
        }
        let iommu = self.has_iommu();
        self.features = features;
        device.negotiated(features);
        if self.has_iommu() != iommu {
            // The meaning of the addresses changes; no ring runs.
            return self.publish_memory(device);
        }
        if changed.contains(Features::LOG_ALL) {
            return self.publish_memory(device);
        }
        Ok(Outcome::Done)
    }

    pub(super) fn set_protocol_features(&mut self, bits: u64) -> Handled {
        let protocol = ProtocolFeatures::from_bits(bits).filter(|&p| self.protocol_offer.contains(p));
        let Some(protocol) = protocol else {
            refuse!("{:#x} was not offered", bits & !self.protocol_offer.bits());
        };
        self.protocol = protocol;
        Ok(Outcome::Done)
    }

    pub(super) fn set_mtu(&mut self, mtu: u64, device: &mut dyn Device) -> Handled {
        let mtu = Some(mtu)
            .filter(|m| MTU.contains(m))
            .and_then(|m| u16::try_from(m).ok());
        let Some(mtu) = mtu else { refuse!("no such MTU") };
        device.set_mtu(mtu).map_err(Refusal::new)?;
        Ok(Outcome::Done)
    }

    pub(super) fn set_status(&mut self, status: u64, device: &mut dyn Device) -> Handled {
        let Ok(status) = u8::try_from(status) else {
            refuse!("{status:#x} is no device status");
        };
        self.status = status;
        if status == 0 {
            // A reset (virtio 1.2 §2.4): rings are set up again before they are used again.
            self.stop_all(device);
            for ring in &mut self.rings {
                ring.reset();
            }
        }
        device.set_status(status);
        Ok(Outcome::Done)
    }

    pub(super) fn reset_device(&mut self, device: &mut dyn Device) -> Handled {
        self.stop_all(device);
        for ring in &mut self.rings {
            ring.reset();
        }
        self.status = 0;
        self.inflight = None;
        device.set_status(0);
        Ok(Outcome::Done)
    }

    pub(super) fn get_config(&mut self, space: &ConfigSpace, device: &mut dyn Device) -> Handled {
        let config = device.config();
        let from = space.offset as usize;
        let part = config.get(from..from.saturating_add(space.bytes.len()));
        let Some(part) = part.filter(|p| !p.is_empty() && p.len() <= MAX_CONFIG) else {
            refuse!("bytes {from}+{} are not there", space.bytes.len());
        };
        let space = ConfigSpace {
            bytes: part.to_vec(),
            ..*space
        };
        Ok(Outcome::Reply(Reply::Config(space), None))
    }

    pub(super) fn set_config(&mut self, space: &ConfigSpace, device: &mut dyn Device) -> Handled {
        let migration = space.flags.contains(ConfigFlags::MIGRATION);
        device
            .set_config(space.offset, &space.bytes, migration)
            .map_err(Refusal::new)?;
        Ok(Outcome::Done)
    }
}
