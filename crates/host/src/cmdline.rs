//! A VMM's command line. QEMU writes an option as `key=value,key=value`, in which `,,` stands for a comma, or as a JSON
//! object; the key of the first value may be omitted.

use std::collections::BTreeMap;
use uuid::Uuid;

/// A command line, split into words.
pub(crate) struct CommandLine(Vec<String>);

/// A network back end and the options of its front end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NetDev {
    /// The tap, if it is named.
    pub ifname: Option<String>,
    /// File descriptors of the tap, if they were passed.
    pub fds: Vec<u32>,
    /// Whether vhost is requested; `None` if the command line does not say.
    pub vhost: Option<bool>,
    /// The guest's MAC address.
    pub mac: Option<[u8; 6]>,
}

impl CommandLine {
    /// From the contents of `/proc/PID/cmdline`.
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let words = bytes.split(|&b| b == 0).map(|w| String::from_utf8_lossy(w).into_owned());
        CommandLine(words.collect())
    }

    /// The value of each `-option`; `--option` and `--option=value` are the same.
    fn values<'a>(&'a self, option: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().enumerate().filter_map(move |(i, word)| {
            let name = word.strip_prefix("--").or_else(|| word.strip_prefix('-'))?;
            if name == option {
                return self.0.get(i + 1).map(String::as_str);
            }
            name.strip_prefix(option)?.strip_prefix('=')
        })
    }

    /// Whether this is QEMU.
    fn is_qemu(&self) -> bool {
        self.0
            .first()
            .is_some_and(|w| w.rsplit('/').next().is_some_and(|n| n.starts_with("qemu") || n == "kvm"))
    }

    /// QEMU's `-name`, else Firecracker's `--id`.
    pub(crate) fn name(&self) -> Option<String> {
        let name = self.values("name").last().and_then(|v| Options::parse(v, "guest").take("guest"));
        let id = || self.values("id").last().map(str::to_owned);
        name.or_else(|| if self.is_qemu() { None } else { id() }).filter(|n| !n.is_empty())
    }

    /// QEMU's `-uuid`, which libvirt sets to that of the domain, else `-smbios type=1,uuid=`.
    pub(crate) fn uuid(&self) -> Option<Uuid> {
        let own = self.values("uuid").last().map(str::to_owned);
        let of_smbios = |value: &str| {
            let options = Options::parse(value, "type");
            if options.get("type") == Some("1") { options.take("uuid") } else { None }
        };
        let uuid = own.or_else(|| self.values("smbios").filter_map(of_smbios).last())?;
        Uuid::try_parse(&uuid).ok().filter(|uuid| !uuid.is_nil())
    }

    /// The context id of QEMU's vsock device.
    pub(crate) fn vsock_cid(&self) -> Option<u32> {
        let of_device = |value: &str| {
            let options = Options::parse(value, "driver");
            let vsock = options.get("driver").is_some_and(|driver| driver.starts_with("vhost-vsock"));
            options.get("guest-cid").filter(|_| vsock)?.parse().ok()
        };
        // 0 to 2 are no guest's.
        self.values("device").find_map(of_device).filter(|cid| *cid > 2)
    }

    /// Memory, bytes: `-m`, else the sum of the memory back ends, else QEMU's default.
    pub(crate) fn memory(&self) -> Option<u64> {
        let backends = self.memory_backends();
        if self.values("m").next().is_none() && !backends.is_empty() {
            return Some(backends.into_iter().fold(0, u64::saturating_add));
        }
        self.main_memory()
    }

    /// The sizes of the guest's memory in parts, each of which is one mapping of the VMM, bytes: those of the memory back ends, and what
    /// `-m` says unless a back end is that. Empty if the command line does not say.
    pub(crate) fn memory_parts(&self) -> Vec<u64> {
        let has =
            |option, key| self.values(option).any(|value| Options::parse(value, "type").get(key).is_some());
        let is_backend =
            has("machine", "memory-backend") || has("M", "memory-backend") || has("numa", "memdev");
        let main = self.main_memory().filter(|_| !is_backend);
        self.memory_backends().into_iter().chain(main).collect()
    }

    /// What `-m` says, else QEMU's default, bytes.
    fn main_memory(&self) -> Option<u64> {
        match self.values("m").last() {
            Some(m) => size(&Options::parse(m, "size").take("size")?, 1 << 20),
            None => self.is_qemu().then_some(128 << 20),
        }
    }

    /// The sizes of the memory back ends, bytes; 0 if it is not said.
    fn memory_backends(&self) -> Vec<u64> {
        let all = self.values("object").map(|value| Options::parse(value, "qom-type"));
        let memory =
            all.filter(|options| options.get("qom-type").is_some_and(|t| t.starts_with("memory-backend")));
        memory.map(|options| options.get("size").and_then(|s| size(s, 1)).unwrap_or(0)).collect()
    }

    /// The addresses of the PCI devices that were given to the VM.
    pub(crate) fn given_devices(&self) -> Vec<String> {
        let devices = self.values("device").map(|value| Options::parse(value, "driver"));
        let given =
            devices.filter(|options| options.get("driver").is_some_and(|d| d.starts_with("vfio-pci")));
        let address = |options: Options| {
            let host = options.get("host").map(str::to_owned);
            // The domain of PCI may be left out.
            let host = host.map(|at| if at.matches(':').count() == 1 { format!("0000:{at}") } else { at });
            host.or_else(|| options.get("sysfsdev")?.rsplit('/').next().map(str::to_owned))
        };
        given.filter_map(address).collect()
    }

    /// The back ends of vhost-user by their ids, and the MAC addresses of their front ends.
    pub(crate) fn vhost_user(&self) -> Vec<(String, Option<[u8; 6]>)> {
        let macs = self.macs();
        let backends = self.values("netdev").map(|v| Options::parse(v, "type"));
        let of_user = backends.filter(|options| options.get("type") == Some("vhost-user"));
        let ids = of_user.filter_map(|options| options.take("id"));
        ids.map(|id| (id.clone(), macs.get(&id).copied())).collect()
    }

    /// The MAC addresses of the front ends, by the ids of their back ends.
    fn macs(&self) -> BTreeMap<String, [u8; 6]> {
        self.values("device")
            .filter_map(|value| {
                let options = Options::parse(value, "driver");
                Some((options.get("netdev")?.to_owned(), mac(options.get("mac")?)?))
            })
            .collect()
    }

    /// The tap back ends, in order.
    pub(crate) fn netdevs(&self) -> Vec<NetDev> {
        let macs = self.macs();
        let backends = self.values("netdev").chain(self.values("nic")).map(|v| Options::parse(v, "type"));
        backends
            .filter(|options| options.get("type") == Some("tap"))
            .map(|options| NetDev {
                ifname: options.get("ifname").map(str::to_owned),
                fds: options.descriptors(),
                vhost: options.vhost(),
                mac: options
                    .get("mac")
                    .and_then(mac)
                    .or_else(|| options.get("id").and_then(|id| macs.get(id).copied())),
            })
            .collect()
    }
}

/// The keys and values of one option.
struct Options(BTreeMap<String, String>);

impl Options {
    /// Parses `key=value,…`, whose first word may lack `first=`, or JSON.
    fn parse(text: &str, first: &str) -> Self {
        if text.starts_with('{') {
            return Self::json(text);
        }
        let mut map = BTreeMap::new();
        for (i, word) in split_commas(text).into_iter().enumerate() {
            match word.split_once('=') {
                Some((key, value)) => map.insert(key.to_owned(), value.to_owned()),
                None if i == 0 => map.insert(first.to_owned(), word),
                None => map.insert(word, "on".to_owned()),
            };
        }
        Options(map)
    }

    fn json(text: &str) -> Self {
        use serde_json::Value;
        let object = serde_json::from_str::<serde_json::Map<String, Value>>(text).unwrap_or_default();
        let text = |v: Value| match v {
            Value::String(s) => s,
            Value::Bool(true) => "on".to_owned(),
            Value::Bool(false) => "off".to_owned(),
            other => other.to_string(),
        };
        Options(object.into_iter().map(|(k, v)| (k, text(v))).collect())
    }

    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    fn take(mut self, key: &str) -> Option<String> {
        self.0.remove(key)
    }

    fn descriptors(&self) -> Vec<u32> {
        let text = self.get("fds").or_else(|| self.get("fd")).unwrap_or_default();
        text.split(':').filter_map(|n| n.parse().ok()).collect()
    }

    fn vhost(&self) -> Option<bool> {
        match self.get("vhost") {
            Some(v) => Some(matches!(v, "on" | "yes" | "true" | "y")),
            None => (self.get("vhostfd").is_some() || self.get("vhostfds").is_some()).then_some(true),
        }
    }
}

/// Splits at commas; two commas stand for one that does not split.
fn split_commas(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        let last = words.len() - 1;
        if c != ',' {
            words[last].push(c);
        } else if chars.next_if_eq(&',').is_some() {
            words[last].push(',');
        } else {
            words.push(String::new());
        }
    }
    words
}

/// A size in QEMU's format; `unit` is the unit of a number without suffix.
fn size(text: &str, unit: u64) -> Option<u64> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, suffix) = text.split_at(digits);
    let unit = match suffix.trim_end_matches(['b', 'B', 'i']).to_ascii_lowercase().as_str() {
        "" if suffix.is_empty() => unit,
        "" => 1,
        "k" => 1 << 10,
        "m" => 1 << 20,
        "g" => 1 << 30,
        "t" => 1 << 40,
        _ => return None,
    };
    match number.parse::<u64>() {
        Ok(n) => n.checked_mul(unit),
        Err(_) => number.parse::<f64>().ok().map(|n| (n * unit as f64) as u64),
    }
}

/// A MAC address.
pub(crate) fn mac(text: &str) -> Option<[u8; 6]> {
    let mut bytes = [0; 6];
    let mut words = text.split([':', '-']);
    for byte in &mut bytes {
        *byte = u8::from_str_radix(words.next()?, 16).ok()?;
    }
    words.next().is_none().then_some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> CommandLine {
        CommandLine::new(text.replace(' ', "\0").as_bytes())
    }

    #[test]
    fn names() {
        assert_eq!(line("qemu -name guest=a,debug-threads=on").name().as_deref(), Some("a"));
        assert_eq!(line("qemu -name a,,b,process=x").name().as_deref(), Some("a,b"));
        assert_eq!(line("/usr/bin/firecracker --id vm7").name().as_deref(), Some("vm7"));
        assert_eq!(line("qemu -name").name(), None);
        assert_eq!(line("qemu -m 1G").name(), None);
        assert_eq!(line("").name(), None);
    }

    #[test]
    fn uuids() {
        let text = "c7a5fdbd-cdaf-9455-926a-d65c16db1809";
        let uuid = |of: &str| line(of).uuid().map(|uuid| uuid.to_string());
        assert_eq!(uuid(&format!("qemu -uuid {text}")).as_deref(), Some(text));
        assert_eq!(
            uuid(&format!("qemu -smbios type=0,vendor=a -smbios type=1,uuid={text}")).as_deref(),
            Some(text)
        );
        for none in
            ["qemu", "qemu -uuid", "qemu -uuid x\u{1b}", "qemu -uuid 00000000-0000-0000-0000-000000000000"]
        {
            assert_eq!(uuid(none), None, "{none}");
        }
    }

    #[test]
    fn memory() {
        assert_eq!(line("qemu -m 512").memory(), Some(512 << 20));
        assert_eq!(line("qemu -m size=1048576k,slots=2,maxmem=8G").memory(), Some(1 << 30));
        assert_eq!(line("qemu -m 1.5G").memory(), Some(3 << 29));
        assert_eq!(line("/usr/bin/qemu-kvm").memory(), Some(128 << 20));
        let backends = r#"qemu -object memory-backend-ram,id=a,size=1G -object {"qom-type":"memory-backend-file","size":1048576}"#;
        assert_eq!(line(backends).memory(), Some((1 << 30) + (1 << 20)));
        assert_eq!(line("cloud-hypervisor").memory(), None);
        assert_eq!(line("qemu -m 99999999999999999999").memory(), Some(u64::MAX));
    }

    #[test]
    fn memory_has_parts() {
        let parts =
            |of: &str| line(of).memory_parts().into_iter().map(|bytes| bytes >> 20).collect::<Vec<_>>();
        assert_eq!(parts("qemu -m 512"), [512]);
        assert_eq!(parts("qemu"), [128]);
        assert_eq!(parts("cloud-hypervisor --memory size=1G"), [0u64; 0]);
        let one = "qemu -m 512 -object memory-backend-ram,id=far,size=512M -machine q35,memory-backend=far";
        assert_eq!(parts(one), [512]);
        // As libvirt writes it: two nodes of the guest, and a DIMM.
        let dimm = r#"-object {"qom-type":"memory-backend-ram","id":"d","size":8589934592} -device pc-dimm,memdev=d"#;
        let nodes = "-object memory-backend-ram,id=a,size=4G -numa node,memdev=a -object memory-backend-ram,id=b,size=4G -numa node,memdev=b";
        assert_eq!(parts(&format!("qemu -m size=8388608k,slots=2 {nodes} {dimm}")), [4096, 4096, 8192]);
        assert_eq!(parts(&format!("qemu -m 4G {dimm}")), [8192, 4096]);
    }

    #[test]
    fn nics() {
        let qemu = "qemu -netdev tap,id=n0,ifname=tap0,vhost=on -device virtio-net-pci,netdev=n0,mac=52:54:00:00:00:01 \
                    -netdev {\"type\":\"tap\",\"fds\":\"33:34\",\"vhostfds\":\"35:36\",\"id\":\"n1\"} \
                    -device {\"driver\":\"virtio-net-pci\",\"netdev\":\"n1\",\"mac\":\"52:54:00:00:00:02\"} \
                    -netdev user,id=n2 -nic tap,ifname=tap9,mac=52:54:00:00:00:09";
        let nics = line(&qemu.replace("  ", "")).netdevs();
        assert_eq!(nics.len(), 3);
        assert_eq!(nics[0].ifname.as_deref(), Some("tap0"));
        assert_eq!((nics[0].vhost, nics[0].mac), (Some(true), Some([0x52, 0x54, 0, 0, 0, 1])));
        assert_eq!((nics[1].fds.clone(), nics[1].vhost), (vec![33, 34], Some(true)));
        assert_eq!(nics[1].mac, Some([0x52, 0x54, 0, 0, 0, 2]));
        assert_eq!((nics[2].vhost, nics[2].mac), (None, Some([0x52, 0x54, 0, 0, 0, 9])));
    }

    #[test]
    fn nonsense_is_not_a_mac() {
        for text in ["", "52:54", "52:54:00:00:00:01:02", "zz:54:00:00:00:01", "5:4:0:0:0:256"] {
            assert_eq!(mac(text), None, "{text}");
        }
    }
}
