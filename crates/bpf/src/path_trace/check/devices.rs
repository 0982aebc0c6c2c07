//! What is told of interrupts of devices that were given to a VM, on interrupts made for it.

use super::threads::{HOG, Happening, Host, TOLD, follow, records, telling};
use super::types;
use libbpf_rs::{MapCore, MapFlags};
use teiji_model::event::{Delivery, DeviceInterrupt, EventKind};

const VM: u32 = 7;
/// The vCPU [`TOLD`].
const VCPU: u32 = 3;
const IRQ: u32 = 40;

/// A host that follows a VM with a NIC of the host.
fn host() -> Host {
    let host = telling();
    let vms = super::super::map(&host.object, "vms").unwrap();
    vms.update(&VM.to_ne_bytes(), &VM.to_ne_bytes(), MapFlags::ANY).unwrap();
    follow(&host, types::hint::HINT_DEVICES, true);
    host
}

/// Returns whether the handler of a device's interrupt is taken to do it.
fn interrupts(host: &Host, task: u32, vm: u32) -> bool {
    host.happens(Happening::DeviceInterruptsVm, 0, task, vm) != 0
}

fn accepts(host: &Host, task: u32) -> bool {
    host.happens(Happening::DeviceInterruptAccepted, 0, task, VCPU) != 0
}

fn told(host: &Host) -> Vec<DeviceInterrupt> {
    let interrupt = |(_, kind)| match kind {
        EventKind::DeviceInterrupt(i) => Some(i),
        _ => None,
    };
    records(&host.object).into_iter().filter_map(interrupt).collect()
}

/// Before the first entry of a vCPU it is not known whether hardware delivers its interrupts.
#[test]
fn an_interrupt_has_its_vector_also_if_hardware_delivers_it() {
    let mut host = host();
    let deliveries = [(Happening::WentToSleep, Delivery::Accepted), (Happening::Enters, Delivery::Posted)];
    for (does, delivery) in deliveries {
        host.happens(does, 0, TOLD, HOG);
        host.passes(10);
        let began = host.now;
        host.happens(Happening::DeviceIrqBegins, 0, HOG, IRQ);
        host.passes(10);
        assert!(interrupts(&host, HOG, VM) && accepts(&host, HOG));
        host.happens(Happening::DeviceIrqEnds, 0, HOG, 0);
        let (vm, vcpu, irq, vector, by_hardware) = (VM, VCPU, IRQ, 38, true);
        assert_eq!(told(&host), [DeviceInterrupt { began, irq, delivery, vm, vcpu, vector, by_hardware }]);
    }
}

#[test]
fn an_interrupt_that_no_vcpu_was_seen_to_accept_is_told_at_its_end() {
    let host = host();
    host.happens(Happening::DeviceIrqBegins, 0, HOG, IRQ);
    interrupts(&host, HOG, VM);
    host.happens(Happening::DeviceIrqEnds, 0, HOG, 0);
    let [told] = told(&host)[..] else { panic!("not one") };
    assert_eq!((told.delivery, told.vm, told.irq), (Delivery::Unknown, VM, IRQ));
}

#[test]
fn a_vm_without_such_a_nic_is_not_told_of() {
    let host = host();
    host.happens(Happening::DeviceIrqBegins, 0, HOG, IRQ);
    assert!(interrupts(&host, HOG, VM + 1) && accepts(&host, HOG));
    host.happens(Happening::DeviceIrqEnds, 0, HOG, 0);
    assert_eq!(told(&host), []);
}

/// With PREEMPT_RT handlers are threads, which others preempt.
#[test]
fn what_another_task_does_is_not_taken_for_the_handlers() {
    let host = host();
    host.happens(Happening::DeviceIrqBegins, 0, HOG, IRQ);
    assert!(!interrupts(&host, HOG + 1, VM) && !accepts(&host, HOG + 1));
    assert!(interrupts(&host, HOG, VM));
}

#[test]
fn a_handler_ends_also_if_no_such_vm_is_followed_any_longer() {
    let host = host();
    host.happens(Happening::DeviceIrqBegins, 0, HOG, IRQ);
    follow(&host, types::hint::HINT_DEVICES, false);
    host.happens(Happening::DeviceIrqEnds, 0, HOG, 0);
    follow(&host, types::hint::HINT_DEVICES, true);
    assert!(!interrupts(&host, HOG, VM));
}

/// A disk may interrupt its VM often: user space says that it is no NIC, for some time.
#[test]
fn interrupts_of_other_devices_are_not_told_for_some_time() {
    let mut host = host();
    let others = super::super::OtherIrqs(super::super::map(&host.object, "other_irqs").unwrap());
    others.set(IRQ + 1, host.now + 100);
    let mut begins = |ns, irq| {
        host.passes(ns);
        host.happens(Happening::DeviceIrqBegins, 0, HOG, irq);
        let told = interrupts(&host, HOG, VM);
        host.happens(Happening::DeviceIrqEnds, 0, HOG, 0);
        told
    };
    assert_eq!(
        [begins(0, IRQ + 1), begins(99, IRQ + 1), begins(0, IRQ), begins(1, IRQ + 1)],
        [false, false, true, true]
    );
}
