//! The settings of this host as a plan and its journal name them: those of threads, groups and devices
//! ([`teiji_host::Settings`]) and channels with deadlines as one, which teiji's own qdisc keeps
//! ([`teiji_bpf::qdisc_edf`]) or, on kernels without BPF qdiscs, HFSC ([`teiji_host::Hfsc`]).
//!
//! A link's queue has two parts: its root qdisc, which rtnetlink shows, and, if that is teiji's, the content of the
//! pinned maps. Each change of it is done completely by one system call, whatever else has to be prepared:
//!
//! ```text
//!  existing ── maps are filled (nothing looks at them) ──► root qdisc replaced ──► deadline
//!  deadline ── one map update ──► another deadline qdisc
//!  any ── one sendmsg ──► deadline, by HFSC
//!  deadline ── what is queued leaves (does not show) ──► root qdisc replaced ──► existing; maps are cleared
//! ```
//! (`existing`: a qdisc that is not teiji's.) A process that is killed in between leaves the former or the new
//! queue, and leftovers that [`apply::SettingsBackend::remove_leftovers`] removes.

use crate::apply;
use crate::daemon::claim;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use teiji_bpf::qdisc_edf::{self as edf, Edf, KIND, PinnedQdisc};
use teiji_bpf::scx_vcpu;
use teiji_control::admission::curve;
use teiji_host::{Devices, Hfsc, Root, Settings, kernel};
use teiji_model::observed::{DeadlineSupport, Observed, SchedExt};
use teiji_model::qdisc::{DeadlineQdisc, Device, ExistingQdisc, RootQdisc, Scheduler};
use teiji_model::resource::{Resource, ResourceError, Value};
use teiji_model::status::{LinkStatus, LinksStatus};
use teiji_model::text::printable;

/// Where the qdisc is pinned unless the caller names another folder.
pub use teiji_bpf::qdisc_edf::PINS;

/// How long queued packets may take to leave before the kernel drops them with their qdisc.
const DRAIN: Duration = Duration::from_millis(100);
/// How an operator starts the agent.
const START: &str = "start the agent: `systemctl start teiji-agent`, or `teiji agent`";

/// A host, and where its qdisc is pinned.
#[derive(Clone, Debug)]
pub struct HostBackend {
    settings: Settings,
    hfsc: Hfsc,
    pins: PathBuf,
    state: PathBuf,
    real: bool,
}

impl HostBackend {
    /// The host whose files are below `root`, whose qdisc is pinned in `pins`, and whose HFSC channels are described by
    /// notes in `state`. The kernel is asked only if `root` is `/`.
    pub fn new(root: Root, pins: &Path, state: &Path) -> Self {
        let real = root.is_real();
        let settings = Settings::new(root);
        HostBackend {
            real,
            hfsc: Hfsc::new(settings.clone(), state, curve::of),
            settings,
            pins: pins.to_owned(),
            state: state.to_owned(),
        }
    }

    /// Adds what only the pinned programs and the files of the state directory show: whether packets can have deadlines,
    /// and the channels that exist. `devices` are the lists that `observed` was taken from: the kernel is not asked for
    /// them again, however many links have channels.
    pub fn complete(&self, observed: &mut Observed, devices: &Devices) {
        observed.deadline_support = self.support();
        observed.sched_ext = self.sched_ext();
        if !self.real {
            return;
        }
        let links: Vec<Device> = observed.links.iter().map(|link| link.device()).collect();
        // HFSC has classes, so that it is not read as just a qdisc.
        self.hfsc.complete(devices, links.iter().cloned(), &mut observed.settings);
        let mut edf = None;
        for device in links {
            let resource = Resource::RootQdisc(device.clone());
            if let Some(Value::RootQdisc(root)) = observed.settings.get(&resource).filter(|v| is_teijis(v)) {
                let read = channels(edf.get_or_insert_with(|| self.edf()), &device, root.clone());
                observed.settings.record(resource, read.map(Value::RootQdisc));
            }
        }
    }

    /// Whether threads of VMs can go by the deadlines of packets.
    fn sched_ext(&self) -> SchedExt {
        if !self.real {
            return SchedExt::None(
                "only the machine itself shows whether its kernel can; this is a copy of its files".into(),
            );
        }
        match scx_vcpu::supported() {
            Ok(()) => match kernel::sched_ext_scheduler().filter(|name| name != scx_vcpu::NAME) {
                Some(other) => SchedExt::Taken(other),
                None => match claim::is_held(&self.state) {
                    Ok(true) => SchedExt::Usable,
                    Ok(false) => SchedExt::NoAgent(format!(
                        "{START}; no agent is running; only one schedules threads by deadlines"
                    )),
                    Err(why) => SchedExt::NoAgent(format!(
                        "make sure that an agent is running: `systemctl status teiji-agent`; {} cannot be read ({why})",
                        self.state.display()
                    )),
                },
            },
            Err(teiji_bpf::Error::Missing { what, .. }) => SchedExt::None(format!("{what} is missing")),
            Err(why) => SchedExt::None(why.to_string()),
        }
    }

    /// Whether packets can have deadlines now.
    pub fn support(&self) -> DeadlineSupport {
        if !self.real {
            return DeadlineSupport::None(
                "what is below --root is not the machine that the kernel runs on".into(),
            );
        }
        let heartbeat_age = match PinnedQdisc::open(&self.pins) {
            Ok(PinnedQdisc::Usable(edf)) => edf.heartbeat_age(),
            Ok(PinnedQdisc::OtherMaps(_)) => return DeadlineSupport::None(OTHER.into()),
            Ok(PinnedQdisc::Damaged(_, why)) => return DeadlineSupport::None(damaged(&why)),
            Ok(PinnedQdisc::Absent) => {
                return or_hfsc(format!(
                    "{START}; no agent is running; deadlines are kept only while one runs"
                ));
            }
            Err(teiji_bpf::Error::NotPermitted) => {
                let pins = self.pins.display();
                return or_hfsc(format!(
                    "make sure that an agent is running: `systemctl status teiji-agent`; only root may look into {pins}, \
                     so with sudo this plan says whether it is"
                ));
            }
            Err(why) => {
                let pins = self.pins.display();
                return DeadlineSupport::None(format!("what is pinned in {pins} cannot be told: {why}"));
            }
        };
        match silence(heartbeat_age) {
            None => DeadlineSupport::Edf,
            Some(why) => {
                DeadlineSupport::NoAgent(format!("{START}; {why}; deadlines are kept only while one runs"))
            }
        }
    }

    /// The links of this network namespace that have channels, as they are now.
    pub fn links(&self) -> LinksStatus {
        let edf = match PinnedQdisc::open(&self.pins) {
            Ok(PinnedQdisc::Usable(edf)) => edf,
            Ok(PinnedQdisc::OtherMaps(shared)) if shared.link_count() > 0 => {
                return LinksStatus { problem: Some(OTHER.into()), ..LinksStatus::default() };
            }
            Ok(PinnedQdisc::Damaged(shared, why)) if shared.link_count() > 0 => {
                return LinksStatus { problem: Some(damaged(&why)), ..LinksStatus::default() };
            }
            Ok(_) => return LinksStatus::default(),
            Err(teiji_bpf::Error::NotPermitted) => {
                let pins = self.pins.display();
                let why = format!("only root may look into {pins}, so links with channels are not shown");
                return LinksStatus { hidden: Some(why), ..LinksStatus::default() };
            }
            Err(why) => {
                let why = format!("links with channels are not shown: {why}");
                return LinksStatus { problem: Some(why), ..LinksStatus::default() };
            }
        };
        let mut now = LinksStatus::default();
        match links_of(&edf) {
            Ok(links) => now.links = links,
            Err(why) => now.problem = Some(format!("links with channels are not shown: {why}")),
        }
        if !now.links.is_empty() && now.problem.is_none() {
            now.problem = silence(edf.heartbeat_age()).map(|why| {
                format!("deadlines are not kept, packets leave in the order of their arrival: {why}; {START}")
            });
        }
        now
    }

    /// The pinned qdisc, if its maps are those of this release.
    ///
    /// Damaged pins count as those of another release, whichever is missing: what is on a link is then not known, but it can be
    /// taken from the link.
    fn edf(&self) -> Result<Option<Box<Edf>>, String> {
        match PinnedQdisc::open(&self.pins) {
            Ok(PinnedQdisc::Usable(edf)) => Ok(Some(edf)),
            Ok(PinnedQdisc::Absent | PinnedQdisc::OtherMaps(_) | PinnedQdisc::Damaged(..)) => Ok(None),
            Err(why @ teiji_bpf::Error::NotPermitted) => Err(why.to_string()),
            Err(_) => Ok(None),
        }
    }

    fn write_edf(&self, device: &Device, wanted: &DeadlineQdisc) -> Result<(), ResourceError> {
        let refused = |why: String| {
            let name = &device.name;
            ResourceError::Refused(format!("cannot give packets deadlines on {name}: {why}"))
        };
        let setting = Resource::RootQdisc(device.clone());
        let root = self.settings.read(&setting)?;
        let edf = self.edf().map_err(refused)?.ok_or_else(|| match self.support() {
            DeadlineSupport::None(why) | DeadlineSupport::Hfsc(why) | DeadlineSupport::NoAgent(why) => {
                refused(why)
            }
            // An agent was started meanwhile.
            DeadlineSupport::Edf => refused("no teiji agent kept them just now; try again".into()),
        })?;
        let kernel = |e: teiji_bpf::Error| refused(e.to_string());
        if edf.has(device.index).map_err(kernel)? {
            return edf.put_link(device.index, wanted).map_err(kernel);
        }
        if is_teijis(&root) {
            return Err(refused(format!(
                "it has a {KIND} of another process; `tc qdisc del dev {} root` removes that",
                device.name
            )));
        }
        // A killed process may have left an entry, whose statistics must not be taken over.
        edf.remove_link(device.index).map_err(kernel)?;
        let teijis = ExistingQdisc { kind: KIND.into(), chosen: true, options: Vec::new() };
        let done = edf.put_link(device.index, wanted).map_err(kernel).and_then(|()| {
            self.settings.write(&setting, &Value::RootQdisc(RootQdisc::Existing(Box::new(teijis))))
        });
        done.inspect_err(|_| {
            // If it cannot be removed either, `remove_leftovers` tries again.
            let _ = edf.remove_link(device.index);
        })
    }

    fn write_hfsc(&self, device: &Device, wanted: &DeadlineQdisc) -> Result<(), ResourceError> {
        if !self.real {
            return Err(ResourceError::Unsupported(
                "what is below --root is not the machine that the kernel runs on".into(),
            ));
        }
        self.hfsc.write(device, wanted)
    }

    fn write_existing(&self, device: &Device, wanted: &ExistingQdisc) -> Result<(), ResourceError> {
        let hfsc = self.real && matches!(self.hfsc.read(device), Ok(Some(_)));
        let setting = Resource::RootQdisc(device.clone());
        let value = Value::RootQdisc(RootQdisc::Existing(Box::new(wanted.clone())));
        // If it cannot be drained, it is removed all the same.
        let edf = self.edf().ok().flatten().filter(|edf| edf.has(device.index).unwrap_or(false));
        if let Some(edf) = &edf {
            drain(edf, device.index);
        }
        let done = self.settings.write(&setting, &value);
        if hfsc
            && done.is_ok()
            && let Err(why) = self.hfsc.forget(device)
        {
            tracing::warn!("{}", printable(&why));
        }
        if let Some(edf) = &edf {
            let cleared = match done {
                Ok(()) => edf.remove_link(device.index),
                // Turns pacing on again.
                Err(_) => edf.remove_leftovers(),
            };
            if let Err(why) = cleared {
                tracing::warn!("the maps of {} are not cleared yet: {why}", printable(&device.name));
            }
        }
        done
    }
}

/// Whether a root qdisc is teiji's BPF qdisc, as rtnetlink shows it: without channels.
fn is_teijis(value: &Value) -> bool {
    matches!(value, Value::RootQdisc(RootQdisc::Existing(existing)) if existing.kind == KIND)
}

/// The channels of a device whose root qdisc is teiji's BPF qdisc. If its pins are gone or in another folder, it is
/// `root`, like any other qdisc.
fn channels(
    edf: &Result<Option<Box<Edf>>, String>,
    device: &Device,
    root: RootQdisc,
) -> Result<RootQdisc, ResourceError> {
    let failed = |why: &dyn Display| {
        let name = &device.name;
        ResourceError::Unsupported(format!("cannot read the channels of {name}: {why}"))
    };
    let Some(edf) = edf.as_ref().map_err(|why| failed(why))? else { return Ok(root) };
    let found = edf.has(device.index).and_then(|has| if has { edf.link(device.index) } else { Ok(None) });
    let found = found.map_err(|why| failed(&why))?;
    Ok(found.map_or(root, |qdisc| RootQdisc::Deadline(Box::new(qdisc))))
}

/// What an operator should do about pins of a release with other maps.
const OTHER: &str = "links have channels of a release of teiji with other maps, which this one cannot read: \
                     `teiji rollback --force` removes them, and the agent then keeps new ones";

/// What an operator should do about pins that are incomplete. An agent that runs, or is started, keeps the links going.
fn damaged(why: &str) -> String {
    format!(
        "some of what teiji has pinned is gone or is not teiji's ({why}): channels cannot be read; `teiji rollback --force` removes \
         them, and the agent then keeps new ones"
    )
}

/// What can keep deadlines if no agent runs: teiji's qdisc, once `first` is done, or the kernel's HFSC where the kernel
/// does not accept teiji's.
fn or_hfsc(first: String) -> DeadlineSupport {
    match edf::supported() {
        Ok(()) => DeadlineSupport::NoAgent(first),
        // The consequence that the error names does not apply where HFSC can be used.
        Err(teiji_bpf::Error::Missing { .. }) => DeadlineSupport::Hfsc("no struct_ops Qdisc_ops".into()),
        Err(why) => DeadlineSupport::Hfsc(why.to_string()),
    }
}

/// What is wrong if the agent's last heartbeat was this long ago; `None`: nothing.
fn silence(heartbeat_age: Option<Duration>) -> Option<String> {
    match heartbeat_age {
        Some(age) if age < edf::HEARTBEAT_TIMEOUT => None,
        Some(age) => Some(format!("the agent's last heartbeat was {} s ago", age.as_secs())),
        None => Some("there was no heartbeat of an agent yet".to_owned()),
    }
}

fn links_of(edf: &Edf) -> Result<Vec<LinkStatus>, teiji_bpf::Error> {
    let mut all = Vec::new();
    for index in edf.links()? {
        let (Some(settings), Some(stats)) = (edf.link(index)?, edf.link_stats(index)?) else { continue };
        let name = nix::net::if_::if_indextoname(index).ok().and_then(|n| n.into_string().ok());
        all.push(LinkStatus {
            link: name.unwrap_or_else(|| format!("interface {index}")),
            index,
            settings,
            stats,
            channels: edf.channel_stats(index)?,
        });
    }
    Ok(all)
}

/// Lets queued packets leave as fast as the device accepts them, for a while.
fn drain(edf: &Edf, index: u32) {
    let begun = Instant::now();
    let queued = || {
        edf.link_stats(index).ok().flatten().is_some_and(|stats| stats.rt_queued > 0 || stats.be_queued > 0)
    };
    if edf.disable_pacing(index).is_ok() {
        while queued() && begun.elapsed() < DRAIN {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl apply::SettingsBackend for HostBackend {
    fn read(&self, setting: &Resource) -> Result<Value, ResourceError> {
        if let Resource::RootQdisc(device) = setting
            && self.real
            && let Some(queue) = self.hfsc.read(device)?
        {
            return Ok(Value::RootQdisc(queue));
        }
        match (setting, self.settings.read(setting)?) {
            (Resource::RootQdisc(device), value) if is_teijis(&value) => {
                let Value::RootQdisc(root) = value else { return Ok(value) };
                channels(&self.edf(), device, root).map(Value::RootQdisc)
            }
            (_, value) => Ok(value),
        }
    }

    fn write(&self, setting: &Resource, value: &Value) -> Result<(), ResourceError> {
        match (setting, value) {
            (Resource::RootQdisc(device), Value::RootQdisc(RootQdisc::Deadline(wanted))) => {
                match wanted.scheduler {
                    Scheduler::Edf => self.write_edf(device, wanted),
                    Scheduler::Hfsc => self.write_hfsc(device, wanted),
                }
            }
            (Resource::RootQdisc(device), Value::RootQdisc(RootQdisc::Existing(wanted))) => {
                self.write_existing(device, wanted)
            }
            _ => self.settings.write(setting, value),
        }
    }

    fn disturbed_by(&self, resource: &Resource) -> Vec<Resource> {
        self.settings.disturbed_by(resource)
    }

    fn remove_leftovers(&self) {
        self.settings.remove_leftovers();
        // Without the permission to look, this process cannot have made anything.
        let tidied = self.edf().map(|edf| edf.map_or(Ok(()), |edf| edf.remove_leftovers()));
        if let Ok(Err(why)) = tidied {
            tracing::warn!("what was left of links is not cleared yet: {why}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use teiji_model::observed::{LinkKind, ObservedLink};

    #[test]
    fn a_missing_heartbeat_is_reported() {
        assert_eq!(silence(Some(Duration::from_millis(1999))), None);
        assert!(silence(Some(Duration::from_secs(7))).unwrap().contains("7 s ago"));
        assert!(silence(None).unwrap().contains("no heartbeat"));
    }

    #[test]
    fn channels_are_read_without_asking_for_lists_again() {
        let dir = tempfile::tempdir().unwrap();
        let backend = HostBackend::new(Root::default(), dir.path(), dir.path());
        let start = teiji_host::lists_requested();
        let (_, devices) = Root::default().observe_with_devices().unwrap();
        assert_eq!(teiji_host::lists_requested() - start, 2, "one of devices and one of qdiscs");
        let links = |count: u32| {
            let mut observed = Observed::default();
            let teijis = ExistingQdisc { kind: KIND.into(), chosen: true, options: Vec::new() };
            for index in 0x7000_0000..0x7000_0000 + count {
                let name = format!("no{index}");
                let (kind, irqs, mtu) = (LinkKind::Nic, Vec::new(), 1500);
                let link = ObservedLink { name, index, kind, irqs, speed: None, mtu, guests: false };
                let root = RootQdisc::Existing(Box::new(teijis.clone()));
                observed.settings.insert(Resource::RootQdisc(link.device()), Value::RootQdisc(root));
                observed.links.push(link);
            }
            observed
        };
        for count in [1, 64] {
            let (before, mut observed) = (teiji_host::lists_requested(), links(count));
            backend.complete(&mut observed, &devices);
            assert_eq!(teiji_host::lists_requested(), before, "{count} links");
            assert_eq!(observed.settings.all().count(), count as usize);
        }
    }

    #[test]
    fn without_pins_it_says_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let backend = HostBackend::new(Root::default(), dir.path(), dir.path());
        let message = match backend.support() {
            DeadlineSupport::NoAgent(why) if why.starts_with("start the agent: `systemctl start") => why,
            DeadlineSupport::None(why) | DeadlineSupport::NoAgent(why) => panic!("{why}"),
            DeadlineSupport::Hfsc(why) => why,
            DeadlineSupport::Edf => panic!("nothing is pinned there"),
        };
        assert!(
            message.contains("teiji agent") || message.contains("Qdisc_ops") || message.contains("BTF"),
            "{message}"
        );
        assert_eq!(backend.links(), LinksStatus::default());
        let elsewhere = HostBackend::new(Root::new("/x"), dir.path(), dir.path());
        assert!(matches!(elsewhere.support(), DeadlineSupport::None(why) if why.contains("--root")));
    }
}
