//! How large packets the host's own stack hands to a device, which splits them: `gso_max_size`, bytes.

use super::device::{failed, open};
use super::{Access, Facts, errors};
use crate::root::Root;
use crate::rtnl::SegmentSizes;
use teiji_model::resource::{Resource, ResourceError, ResourceKind, Resources, Value};

/// `GSO_LEGACY_MAX_SIZE`: the kernel's limit for IPv4 packets, unless somebody sets `gso_ipv4_max_size`.
const LEGACY: u32 = 65_536;

pub(super) struct SegmentSize;

impl Access for SegmentSize {
    fn kind(&self) -> ResourceKind {
        ResourceKind::SegmentSize
    }

    fn observe(&self, facts: &Facts<'_>, found: &mut Resources) {
        for device in facts.links.iter().map(|link| link.device()) {
            let read = facts.devices.sizes(&device).and_then(present);
            found.record(Resource::SegmentSize(device), read);
        }
    }

    fn read(&self, root: &Root, resource: &Resource) -> Result<Value, ResourceError> {
        let Resource::SegmentSize(device) = resource else { return Err(errors::no_such_value()) };
        present(open(root, device)?.segment_sizes(device.index).map_err(|e| failed(e, device))?)
    }

    fn write(&self, root: &Root, resource: &Resource, value: &Value) -> Result<(), ResourceError> {
        let (Resource::SegmentSize(device), Value::Bytes(size)) = (resource, value) else {
            return Err(errors::no_such_value());
        };
        let mut rtnl = open(root, device)?;
        let present = rtnl.segment_sizes(device.index).map_err(|e| failed(e, device))?;
        let sizes = SegmentSizes { all: *size, v4: present.v4.map(|_| (*size).min(LEGACY)) };
        rtnl.set_segment_sizes(device.index, sizes).map_err(|e| failed(e, device))
    }
}

fn present(sizes: SegmentSizes) -> Result<Value, ResourceError> {
    match sizes.v4 {
        // Setting one sets the other, which could not be restored.
        Some(v4) if v4 != sizes.all.min(LEGACY) => Err(errors::unsupported(format!(
            "its gso_ipv4_max_size of {v4} differs from its gso_max_size and could not be restored; set both first \
             (`ip link set … gso_max_size {v4}`)"
        ))),
        _ => Ok(Value::Bytes(sizes.all)),
    }
}
