//! Nested guests (L2): started in the lab host under its KVM, with vhost-net taps on the bridge `br0`.
//!
//! Guest number n (from 1) has the addresses `10.77.<k>.(10+n)/24` on its NICs k (from 0), the MAC addresses
//! `52:54:00:77:<k>:(0x10+n)`, the taps `<name>-n<k>`, and the vsock context id 100+n. All NICs are on `br0`.
//! A virtual function that was given to it has the address `10.77.100.(10+n)` and the MAC address `52:54:00:77:64:(0x10+n)`.

use std::{fmt::Write, net::Ipv4Addr, time::Duration};

use crate::{
    child::Child,
    ends,
    error::{Error, Result},
    host::{DEFAULT_LIMIT, LabHost, Output, PF, WIRE, WIRE_MAC, shell},
    machine::{KERNEL_CMDLINE, MACHINE},
    progress::ProgressStep,
    proto::RunRequest,
    recipe::Kernel,
};

/// The guest to start.
#[derive(Debug, Clone)]
pub struct GuestSpec {
    /// Its name: QEMU's `-name`, the host name, and part of the taps' names. At most 10 letters, digits or `-`.
    pub name: String,
    /// Virtual CPUs.
    pub vcpus: u32,
    /// The topology of the vCPUs: what follows the number in QEMU's `-smp`, such as `sockets=2,cores=3`; empty for
    /// QEMU's default. KVM's numbers of vCPUs have gaps if the number of sockets or cores is not a power of two.
    pub topology: String,
    /// Memory, MiB.
    pub mem_mb: u32,
    /// Number of NICs, 1 to 4.
    pub nics: u32,
    /// Queue pairs of each NIC, 1 to 16. Each has its own vhost worker.
    pub queues: u32,
    /// Whether vhost-net processes the packets; otherwise QEMU's own process does.
    pub vhost: bool,
    /// Whether the taps are macvtaps above the bridge, instead of ports of it. With one queue only.
    pub macvtap: bool,
    /// Whether the taps pass the guest's frames on by NAPI (IFF_NAPI), which QEMU itself does not ask for. With one queue only, and
    /// not with `macvtap`.
    pub napi: bool,
    /// Whether a virtual function of the lab host's NIC is passed through to it (VFIO). Needs
    /// [`Spec::passthrough`](crate::Spec::passthrough); there are [`VFS`].
    pub vf: bool,
    /// Pin vCPU i to the i-th of these host CPUs.
    pub pins: Vec<u32>,
    /// Pin the vhost workers to this host CPU.
    pub vhost_cpu: Option<u32>,
    /// Further arguments of its QEMU.
    pub qemu_args: Vec<String>,
    /// The limit for booting, in three attempts together. See [`DEFAULT_LIMIT`].
    pub limit: Duration,
}

impl Default for GuestSpec {
    fn default() -> GuestSpec {
        GuestSpec {
            name: "vm1".into(),
            vcpus: 1,
            topology: String::new(),
            mem_mb: 512,
            nics: 1,
            queues: 1,
            vhost: true,
            macvtap: false,
            napi: false,
            vf: false,
            pins: Vec::new(),
            vhost_cpu: None,
            qemu_args: Vec::new(),
            // With 6 vCPUs on 4 emulated CPUs a boot takes 60 s, and 120 s if this machine is busy as well.
            limit: Duration::from_secs(540),
        }
    }
}

impl GuestSpec {
    /// The default guest with this name.
    pub fn named(name: &str) -> GuestSpec {
        GuestSpec { name: name.into(), ..GuestSpec::default() }
    }
}

/// Number of virtual functions that guests can have at a time.
pub const VFS: u32 = 4;
/// The third byte of the addresses of virtual functions.
pub(crate) const VF_NET: u8 = 100;

/// The descriptor with which QEMU gets the first tap that it does not open itself.
const FIRST_FD: u32 = 40;
/// Makes a descriptor of /dev/net/tun the queue of a tap: TUNSETIFF with IFF_TAP, IFF_NO_PI, IFF_VNET_HDR and IFF_NAPI.
const OPEN_NAPI: &str = r#"perl -e 'open(my $tun, "+<&=", $ARGV[0]) or die $!; ioctl($tun, 0x400454ca, pack("Z16 s x22", $ARGV[1], 0x5012)) or die $!'"#;
/// The number of attempts to boot, each with its part of the limit.
const BOOTS: u32 = 3;
/// The error after which another attempt is made.
const SILENT: &str = "did not answer";

/// What QEMU says when KVM cannot go on with a guest; the guest is stopped for good then.
const STOPPED: &str = "KVM internal error";
/// What [`SIGN`] prints of a guest that was reset, by a panic of its kernel or by a triple fault.
const RESET: &str = "the guest was reset";
/// Prints why a guest has ended, if it is the emulated machine's fault. A guest that shuts down requests it, QEMU names the
/// signal that ends it, and one that is killed prints nothing.
const SIGN: &str = r#"cd /run/teiji/guests/@name@ || exit
grep -m 1 'KVM internal error' qemu.log
! grep -q '^runstate_set .*(shutdown)' qemu.log ||
  grep -qE '^qemu_system_shutdown_request|terminating on signal' qemu.log || echo "the guest was reset"
true
"#;
/// Prints what a guest does; see [`Guest::state`].
const STATE: &str = r#"ask() {
  printf '%s\n' '{"execute":"qmp_capabilities"}' "$@" | timeout 20 socat -t 5 - UNIX:qmp.sock |
    sed 's/\\r\\n/\n/g'
}
monitor() { printf '{"execute":"human-monitor-command","arguments":{"command-line":"%s"}}' "$1"; }
if [ -d /proc/@pid@ ]; then
  echo "its QEMU runs:"
  for _ in 1 2; do
    for t in /proc/@pid@/task/*; do
      state=$(sed 's/.*) //; s/ .*//' $t/stat)
      echo "$(cat $t/comm): $state $(cat $t/wchan), ran and waited, ns, times: $(cat $t/schedstat)"
    done
    ask "$(monitor 'info status')" "$(monitor 'info registers -a')" "$(monitor 'info lapic')" |
      grep -E 'status|CPU#|[RE]IP=|CR0=|LAPIC|LVT|ISR|IRR|Timer|TPR|error'
    sleep 1
  done
else
  echo "its QEMU has ended"
fi
grep -H . /sys/kernel/debug/kvm/@pid@-*/{exits,halt_exits,halt_wakeup,irq_injections,irq_window_exits} 2>/dev/null
tail -n 40 qemu.log
tail -n 60 console.log
true"#;

/// A running guest. It ends when this is dropped, or when the lab host ends.
pub struct Guest<'h> {
    host: &'h LabHost,
    name: String,
    number: u32,
    nics: u32,
    pid: u32,
    vcpu_tids: Vec<u32>,
    vhost_tids: Vec<u32>,
    macvtap: bool,
    vf: Option<String>,
}

impl<'h> Guest<'h> {
    pub(crate) fn start(host: &'h LabHost, spec: &GuestSpec, number: u32) -> Result<Guest<'h>> {
        let fault = |why: String| Error::Guest { name: spec.name.clone(), why };
        let plain = spec.name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        if !plain || spec.name.is_empty() || spec.name.len() > 10 {
            return Err(fault("has a name that is not 1 to 10 letters, digits or `-`".into()));
        }
        let queues = if spec.macvtap || spec.napi { 1..=1 } else { 1..=16 };
        let sizes = (1..=4).contains(&spec.nics)
            && queues.contains(&spec.queues)
            && spec.vcpus > 0
            && !(spec.macvtap && spec.napi);
        if !sizes || number > 200 {
            return Err(fault(
                "must have 1 to 4 NICs of 1 to 16 queues (macvtaps or NAPI: 1), a vCPU, and be one of the first 200 of its host"
                    .into(),
            ));
        }
        let step = ProgressStep::begin(&format!(
            "starting guest {}: {} vCPUs, {} MiB{}",
            spec.name,
            spec.vcpus,
            spec.mem_mb,
            if spec.vhost { "" } else { ", without vhost" }
        ));
        let mut boots = 1;
        loop {
            match Guest::boot(host, spec, number) {
                // KVM can stop a guest of an emulated lab host (see `tools::link_up`), and some have hung.
                Err(Error::Guest { why, .. })
                    if boots < BOOTS && why.starts_with(SILENT) && host.machine().emulator().running() =>
                {
                    step.say(&format!("guest {} is booted again: it {why}", spec.name));
                    ends::rebooted(format!("{}: it {}", spec.name, why.lines().next().unwrap_or_default()));
                    boots += 1;
                }
                Err(e) => return Err(e),
                Ok(guest) => {
                    step.say(&format!("guest {} is up: {}", spec.name, guest.ip()));
                    return Ok(guest);
                }
            }
        }
    }

    fn boot(host: &'h LabHost, spec: &GuestSpec, number: u32) -> Result<Guest<'h>> {
        let fault = |why: String| Error::Guest { name: spec.name.clone(), why };
        let started = host.run(&start_script(spec, number, host.kernel_kind()))?.ok();
        let printed = started.map_err(|e| fault(format!("did not start: {e}")))?;
        let mut words = printed.split_whitespace();
        let pid = words.next().unwrap_or_default();
        let pid = pid.parse().map_err(|e| fault(format!("has no process id: {e}")))?;
        let mut guest = Guest {
            host,
            name: spec.name.clone(),
            number,
            nics: spec.nics,
            pid,
            vcpu_tids: Vec::new(),
            vhost_tids: Vec::new(),
            macvtap: spec.macvtap,
            vf: words.next().map(str::to_owned),
        };
        guest.find_threads(spec)?;
        for (i, cpu) in spec.pins.iter().enumerate().take(spec.vcpus as usize) {
            guest.pin_vcpu(i, *cpu)?;
        }
        if let Some(cpu) = spec.vhost_cpu {
            guest.pin_vhost(cpu)?;
        }
        guest.wait_up(spec.limit / BOOTS)?;
        Ok(guest)
    }

    /// vhost workers are threads of QEMU or, on older kernels, kernel threads named after QEMU's process id.
    fn find_threads(&mut self, spec: &GuestSpec) -> Result<()> {
        let script = format!(
            "grep -H . /proc/{0}/task/*/comm; grep -Hx 'vhost-{0}' /proc/[0-9]*/comm || true",
            self.pid
        );
        let listing = self.host.run(&script)?.ok()?;
        let mut vcpus = Vec::new();
        for line in listing.lines() {
            let Some((path, comm)) = line.split_once("/comm:") else { continue };
            let Some(tid) = path.rsplit('/').next().and_then(|t| t.parse().ok()) else { continue };
            if let Some(n) = comm.strip_prefix("CPU ").and_then(|c| c.strip_suffix("/KVM")) {
                vcpus.push((n.parse::<u32>().unwrap_or(u32::MAX), tid));
            } else if comm.starts_with("vhost-") && !self.vhost_tids.contains(&tid) {
                self.vhost_tids.push(tid);
            }
        }
        vcpus.sort_unstable();
        self.vcpu_tids = vcpus.into_iter().map(|(_, tid)| tid).collect();
        // QEMU opens the NICs' vhost devices in their order, and the device of vsock after them.
        self.vhost_tids.sort_unstable();
        self.vhost_tids.truncate(if spec.vhost { (spec.nics * spec.queues) as usize } else { 0 });
        if self.vcpu_tids.len() != spec.vcpus as usize {
            return Err(self.fault(format!("has not {} vCPU threads but these:\n{listing}", spec.vcpus)));
        }
        Ok(())
    }

    fn wait_up(&self, limit: Duration) -> Result<()> {
        // The call retries for longer than the limit, which does not depend on the lab host's own clock.
        let call = format!(
            "cd /run/teiji/guests/{}
             teiji-lab call --wait 86400 vsock:{} -- true & call=$!
             while sleep 2; [ -d /proc/{} ] && [[ $(<qemu.log) != *'{STOPPED}'* ]]; do :; done & guest=$!
             wait -n $call $guest && [ -d /proc/$guest ]; code=$?
             kill $call $guest 2>/dev/null
             exit $code",
            self.name,
            self.cid(),
            self.pid
        );
        let answer = self.host.run_for(&call, limit).and_then(Output::ok);
        answer.map(drop).map_err(|e| self.fault(format!("{SILENT}: {e}; {}", self.state())))
    }

    /// What its QEMU does, for a message: the logs, and, if it runs, its threads, its registers and its local APICs, twice
    /// so that one sees whether the guest moves.
    fn state(&self) -> String {
        self.look(&format!("{SIGN}{STATE}"))
    }

    fn look(&self, script: &str) -> String {
        let script = script.replace("@pid@", &self.pid.to_string()).replace("@name@", &self.name);
        self.host.run(&script).map_or_else(|e| e.to_string(), |o| o.text())
    }

    /// The error of a command that did not end in the guest, or could not be started there.
    fn explain(&self, error: Error) -> Error {
        let late = matches!(error, Error::Timeout { .. });
        if !late && !matches!(error, Error::Protocol(_)) {
            return error;
        }
        let sign = self.look(SIGN);
        let why =
            [(STOPPED, "KVM stopped it"), (RESET, "it was reset")].iter().find(|(s, _)| sign.contains(s));
        if late && why.is_none() {
            return error;
        }
        let state = self.state();
        if let Some((_, why)) = why {
            ends::guest_failed(format!("guest {}: {why}", self.name), format!("{error}; {state}"));
        }
        self.fault(format!("does not answer: {error}; {state}"))
    }

    fn fault(&self, why: String) -> Error {
        Error::Guest { name: self.name.clone(), why }
    }

    /// Runs `sh` with bash in the guest, with the limit [`DEFAULT_LIMIT`].
    ///
    /// # Errors
    /// Like [`LabHost::run_for`].
    pub fn run(&self, sh: &str) -> Result<Output> {
        self.run_for(sh, DEFAULT_LIMIT)
    }

    /// Runs `sh` with bash in the guest; see [`LabHost::run_for`].
    ///
    /// # Errors
    /// If it exceeds `limit`, or the guest or the lab host has ended.
    pub fn run_for(&self, sh: &str, limit: Duration) -> Result<Output> {
        let output = self.host.start(self.request(sh), Some(limit)).and_then(Child::wait);
        output.map_err(|e| self.explain(e))
    }

    /// Starts `sh` with bash in the guest, without a limit.
    ///
    /// # Errors
    /// If the lab host has ended.
    pub fn spawn(&self, sh: &str) -> Result<Child> {
        self.host.start(self.request(sh), None)
    }

    fn request(&self, sh: &str) -> RunRequest {
        RunRequest { guest: Some(self.cid()), ..shell(sh) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// vsock context id.
    pub fn cid(&self) -> u32 {
        100 + self.number
    }

    /// Process id of its QEMU in the lab host.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Address of its first NIC.
    pub fn ip(&self) -> Ipv4Addr {
        ip(0, self.number)
    }

    /// Its taps in the lab host, in the order of its NICs.
    pub fn taps(&self) -> Vec<String> {
        (0..self.nics).map(|k| tap(&self.name, k)).collect()
    }

    /// The PCI address of the virtual function that it has, if any.
    pub fn vf(&self) -> Option<&str> {
        self.vf.as_deref()
    }

    /// The IP address of that virtual function.
    pub fn vf_ip(&self) -> Ipv4Addr {
        ip(VF_NET.into(), self.number)
    }

    /// The MAC address of that virtual function.
    pub fn vf_mac(&self) -> String {
        mac(VF_NET.into(), self.number)
    }

    /// Whether these are macvtaps.
    pub fn has_macvtaps(&self) -> bool {
        self.macvtap
    }

    /// MAC addresses of its NICs.
    pub fn macs(&self) -> Vec<String> {
        (0..self.nics).map(|k| mac(k, self.number)).collect()
    }

    /// Thread ids of its vCPUs in the lab host, in their order.
    pub fn vcpu_tids(&self) -> Vec<u32> {
        self.vcpu_tids.clone()
    }

    /// Thread ids of its NICs' vhost workers in the lab host, in the order of the NICs and their queues; empty without
    /// vhost.
    pub fn vhost_tids(&self) -> Vec<u32> {
        self.vhost_tids.clone()
    }

    /// Pins vCPU `i` to host CPU `cpu`.
    ///
    /// # Errors
    /// If there is no such vCPU or CPU.
    pub fn pin_vcpu(&self, i: usize, cpu: u32) -> Result<()> {
        let tid = self.vcpu_tids.get(i).ok_or_else(|| self.fault(format!("has no vCPU {i}")))?;
        self.host.run(&format!("taskset -cp {cpu} {tid}"))?.ok().map(drop)
    }

    /// Pins its vhost workers to host CPU `cpu`.
    ///
    /// # Errors
    /// If there is no such CPU.
    pub fn pin_vhost(&self, cpu: u32) -> Result<()> {
        self.vhost_tids
            .iter()
            .try_for_each(|tid| self.host.run(&format!("taskset -cp {cpu} {tid}"))?.ok().map(drop))
    }

    /// Kills the guest.
    ///
    /// # Errors
    /// If the lab host has ended.
    pub fn kill(self) -> Result<()> {
        self.clean_up()
    }

    fn clean_up(&self) -> Result<()> {
        let mut script =
            format!("kill -9 {0} 2>/dev/null; while [ -d /proc/{0} ]; do sleep 0.05; done\n", self.pid);
        for t in self.taps() {
            // Writing to a String cannot fail.
            let _ = writeln!(script, "ip link delete {t} 2>/dev/null");
        }
        let _ = writeln!(script, "ip -n peer neighbour delete {} dev eth0", self.ip());
        if let Some(at) = &self.vf {
            let _ = writeln!(script, "ip -n peer neighbour delete {} dev {WIRE}", self.vf_ip());
            // Without a driver it is free.
            let _ = writeln!(script, "echo {at} > /sys/bus/pci/drivers/vfio-pci/unbind");
        }
        let _ = writeln!(script, "rm -rf /run/teiji/guests/{}; true", self.name);
        self.host.run_for(&script, Duration::from_secs(30))?.ok().map(drop)
    }
}

impl Drop for Guest<'_> {
    fn drop(&mut self) {
        if self.host.machine().emulator().running() {
            // Errors do not matter; the guest ends with the lab host at the latest.
            let _ = self.clean_up();
        }
    }
}

fn ip(nic: u32, number: u32) -> Ipv4Addr {
    Ipv4Addr::new(10, 77, nic as u8, 10 + number as u8)
}

fn mac(nic: u32, number: u32) -> String {
    format!("52:54:00:77:{nic:02x}:{:02x}", 0x10 + number)
}

fn tap(name: &str, nic: u32) -> String {
    format!("{name}-n{nic}")
}

/// Starts the guest's QEMU in the background and prints its process id.
fn start_script(spec: &GuestSpec, number: u32, kernel: Kernel) -> String {
    let name = &spec.name;
    let mut s = format!("set -e\nd=/run/teiji/guests/{name}\nmkdir -p $d\n");
    let mut qemu = format!(
        "qemu-system-x86_64 -name {name},debug-threads=on -nodefaults -no-user-config -display none -no-reboot \
         -machine {MACHINE} -bios qboot.rom -accel kvm -cpu host -smp {}{}{} -m {} -daemonize -pidfile $d/pid \
         -kernel /{} -initrd /run/teiji/boot/initrd -serial file:$d/console.log \
         -D $d/qemu.log -trace qemu_system_shutdown_request -trace runstate_set \
         -qmp unix:$d/qmp.sock,server=on,wait=off -device virtio-rng-pci -device vhost-vsock-pci,guest-cid={} \
         -drive if=none,id=root,format=raw,readonly=on,cache=unsafe,file=/dev/vda \
         -device virtio-blk-pci,drive=root,serial=root",
        spec.vcpus,
        if spec.topology.is_empty() { "" } else { "," },
        spec.topology,
        spec.mem_mb,
        kernel.vmlinux(),
        100 + number,
    );
    let mut addresses = Vec::new();
    for k in 0..spec.nics {
        let (tap, mac, ip) = (tap(name, k), mac(k, number), ip(k, number));
        // Writing to a String cannot fail, here and below.
        let several = spec.queues > 1;
        let multi_queue = if several { " multi_queue" } else { "" };
        let _ = if spec.macvtap {
            writeln!(
                s,
                "ip link add link br0 name {tap} address {mac} type macvtap mode bridge\nip link set {tap} up\n\
                 exec {}<>/dev/tap$(cat /sys/class/net/{tap}/ifindex)",
                FIRST_FD + k
            )
        } else {
            writeln!(
                s,
                "ip tuntap add dev {tap} mode tap vnet_hdr{multi_queue}\nip link set {tap} master br0 up"
            )
        };
        if spec.napi {
            let fd = FIRST_FD + k;
            let _ = writeln!(s, "exec {fd}<>/dev/net/tun\n{OPEN_NAPI} {fd} {tap}");
        }
        let vhost = if spec.vhost { "on" } else { "off" };
        // One vector for each queue of a pair, one for the configuration and one for the control queue.
        let (queues, vectors) = if several {
            (format!(",queues={}", spec.queues), format!(",mq=on,vectors={}", 2 * spec.queues + 2))
        } else {
            (String::new(), String::new())
        };
        let backend = if spec.macvtap || spec.napi {
            format!("fd={}", FIRST_FD + k)
        } else {
            format!("ifname={tap},script=no,downscript=no")
        };
        let _ = write!(
            qemu,
            " -netdev tap,id=n{k},{backend},vhost={vhost}{queues} \
             -device virtio-net-pci,netdev=n{k},mac={mac}{vectors},romfile="
        );
        addresses.push(format!("{ip}/24"));
    }
    let _ = writeln!(
        s,
        "ip -n peer neighbour replace {} lladdr {} nud permanent dev eth0",
        ip(0, number),
        mac(0, number)
    );
    let mut vf = String::new();
    if spec.vf {
        let (ip, mac) = (ip(VF_NET.into(), number), mac(VF_NET.into(), number));
        let _ = write!(
            s,
            "vf=\nfor v in /sys/class/net/{PF}/device/virtfn*; do [ -e $v/driver ] || {{ vf=$v; break; }}; done\n\
             [ -e \"$vf\" ] || {{ echo 'no virtual function is free' >&2; exit 1; }}\n\
             ip link set {PF} vf ${{vf##*virtfn}} mac {mac}\nat=$(basename $(readlink $vf))\n\
             echo vfio-pci > $vf/driver_override\necho $at > /sys/bus/pci/drivers_probe\n\
             ip -n peer neighbour replace {ip} lladdr {mac} nud permanent dev {WIRE}\n"
        );
        // Without its ROM, which no guest boots from.
        qemu += " -device vfio-pci,host=$at,rombar=0";
        vf = format!(" teiji.vf={mac},{ip}/24 teiji.wire=10.77.{VF_NET}.1,{WIRE_MAC}");
    }
    for a in &spec.qemu_args {
        let _ = write!(qemu, " '{}'", a.replace('\'', r"'\''"));
    }
    // `pci=lastbus=0` and a small BIOS (`qboot`) save time in an emulated host. Devices behind PCI bridges are not found.
    let _ = write!(
        s,
        "{qemu} -append '{KERNEL_CMDLINE} pci=lastbus=0 teiji.level=2 \
         teiji.name={name} teiji.addresses={} teiji.peer=10.77.0.1,52:54:00:77:00:01{vf}' >&2 ||\n\
         {{ cat $d/qemu.log >&2; exit 1; }}\n\
         cat $d/pid\necho $at\n",
        addresses.join(",")
    );
    s
}
