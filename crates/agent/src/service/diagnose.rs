//! What is wrong with VMs, by the kernel's own counters: now, or in a recording.
//!
//! ```text
//!  host::usage ─► Sample, Sample, … ─┬───────────────────────────► analysis::diagnose ─► Diagnosis
//!                                    └─► UsageRecorder ─► file ─►        the same
//! ```
//! An observation begins with the last sample of the one before it. Most of the time of a look would go to what each thread of the
//! host has run, which tells who has a CPU that others wait for. So that is read only when the first observation begins and ends, and in
//! those that follow one in which threads waited for a CPU.

use super::{Error, Service};
use crate::output::{Output, Rights};
use crate::recorder::Recorder;
use crate::trace;
use std::collections::BTreeSet;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use teiji_bpf::census::Probes;
use teiji_host::{Look, UsageReader};
use teiji_model::diagnosis::Diagnosis;
use teiji_model::flow::Watch;
use teiji_model::host::Vm;
use teiji_model::recording::{self, Reader};
use teiji_model::report::Counters;
use teiji_model::stream::Item;
use teiji_model::text::printable;
use teiji_model::usage::{ObservedVms, Sample, ThreadUsage, VmUsage};

/// So many samples of an observation are kept at most: with 200 VMs one has some 600 kB.
const MOST: u32 = 240;
/// How soon a request to stop is noticed.
const NOTICED: Duration = Duration::from_millis(50);

/// How long is observed, and how often the counters are read meanwhile: the states of threads in between are not seen.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// How long.
    pub length: Duration,
    /// How often; less often if that would be more than 240 times.
    pub every: Duration,
    /// Whether probes count what threads do, too.
    pub census: bool,
    /// One that is cut short has no result, and a recording does not have its end, so that a replay does not show it.
    pub only_whole: bool,
}

/// Entries of the samples of an observation that is replayed, at most: a file of a few MB may claim any number.
const MAX_ENTRIES: usize = 2_000_000;

/// How old the list of VMs may be when an observation begins that follows another one.
const VMS_FRESH: Duration = Duration::from_secs(20);

/// Observes VMs, once or again and again. Attaches probes only with [`Timing::census`], and changes nothing.
pub struct Observer<'s> {
    service: &'s Service,
    /// Their names; all VMs without any.
    names: Vec<String>,
    timing: Timing,
    reader: UsageReader,
    probes: Option<Probes>,
    recorder: Option<UsageRecorder>,
    listed: Option<Listed>,
    /// The end of the observation before, with which the next one begins.
    last: Option<Sample>,
}

/// The VMs, when they were listed.
struct Listed {
    at: Instant,
    observed: ObservedVms,
    /// About other VMs of the same names, printable.
    notes: Vec<String>,
}

impl Observer<'_> {
    /// What is wrong with the VMs during the next `timing.length`, or until `stop` is set; and notes about other VMs of the same names,
    /// printable. `None` if that is not told: [`Timing::only_whole`].
    ///
    /// # Errors
    /// If a name is that of no VM or of several. A recording that fails is no error here: see [`Observer::finish`].
    pub fn observe(&mut self, stop: &AtomicBool) -> Result<Option<(Diagnosis, Vec<String>)>, Error> {
        let Timing { length, every, only_whole, .. } = self.timing;
        if self.listed.as_ref().is_none_or(|listed| listed.at.elapsed() >= VMS_FRESH) {
            self.list()?;
        }
        let Some(Listed { observed, notes, .. }) = &self.listed else { return Ok(None) };
        let (reader, probes, recorder) = (&mut self.reader, self.probes.as_ref(), &mut self.recorder);
        let mut record = |sample: &Sample| {
            if let Some(recorder) = recorder {
                recorder.sample(sample);
            }
        };
        let first = self.last.take().unwrap_or_else(|| {
            let mut first = look(reader, probes, &observed.vms, Look::End);
            first.threads = reader.threads();
            record(&first);
            first
        });
        let begun = Instant::now();
        let mut samples = vec![first];
        let interval = every.max(length / MOST);
        let mut next = interval;
        while !stop.load(Ordering::Relaxed) && begun.elapsed() < length {
            let at = next.min(length);
            std::thread::sleep(at.saturating_sub(begun.elapsed()).min(NOTICED));
            if begun.elapsed() >= next && next < length {
                let sample = look(reader, probes, &observed.vms, Look::Within);
                record(&sample);
                samples.push(sample);
                // One that came late does not make the following ones crowd.
                next = begun.elapsed() + interval;
            }
        }
        if only_whole && begun.elapsed() < length {
            return Ok(None);
        }
        let mut last = look(reader, probes, &observed.vms, Look::End);
        if !samples[0].threads.is_empty() {
            last.threads = reader.threads();
        }
        samples.push(last.clone());
        let diagnosis = diagnosis(observed, &samples);
        // For the next observation.
        let mut faults = diagnosis.vms.iter().flat_map(|vm| &vm.faults);
        if !faults.any(|fault| fault.cause.is_wait()) {
            last.threads.clear();
        } else if last.threads.is_empty() {
            last.threads = reader.threads();
        }
        record(&last);
        self.last = Some(last);
        Ok(Some((diagnosis, notes.clone())))
    }

    fn list(&mut self) -> Result<(), Error> {
        let mut found = self.service.root.identified_vms()?;
        if self.recorder.is_some() {
            found.retain(|(vm, _)| recording::vm_can_be_observed(vm));
        }
        let selected = self.service.select_among(&found, &self.names)?;
        let selected_ids: Vec<u32> = selected.vms.iter().map(|vm| vm.pid).collect();
        // All, as any of them may be in the way.
        let vms: Vec<Vm> = found.into_iter().map(|(vm, _)| vm).collect();
        let mut uncounted = Vec::new();
        if let Some(probes) = &mut self.probes {
            // A recording has all.
            let wanted = |vm: &&Vm| self.recorder.is_some() || selected_ids.contains(&vm.pid);
            let counted: Vec<Vm> = vms.iter().filter(wanted).cloned().collect();
            probes.follow(&counted, teiji_host::now()).map_err(Error::Census)?;
            uncounted = probes.unseen();
        }
        let observed = ObservedVms { vms, selected: selected_ids, uncounted };
        if self.listed.as_ref().is_none_or(|listed| listed.observed != observed) {
            // A VM that has come has no counters in the last sample.
            self.last = None;
            if let Some(recorder) = &mut self.recorder {
                recorder.observed(&observed);
            }
        }
        self.listed = Some(Listed { at: Instant::now(), observed, notes: selected.notes });
        Ok(())
    }

    /// Completes the recording, if there is one.
    ///
    /// # Errors
    /// Why there is none.
    pub fn finish(self) -> Result<(), Error> {
        self.recorder.map_or(Ok(()), UsageRecorder::finish)
    }
}

impl Service {
    /// Begins to observe the VMs of these names, or all VMs without any name. What is read goes into `record` as well.
    ///
    /// # Errors
    /// Without root, or if the file cannot be written.
    pub fn observer(
        &self,
        names: &[String],
        timing: Timing,
        record: Option<&Path>,
    ) -> Result<Observer<'_>, Error> {
        self.real("the counters of VMs below --root do not move, so nothing can be told from them")?;
        Service::needs_root("what threads of other users do, and KVM's statistics, are for root only")?;
        Ok(Observer {
            service: self,
            names: names.to_owned(),
            timing,
            reader: UsageReader::new(&self.root),
            probes: timing.census.then(Probes::start).transpose().map_err(Error::Census)?,
            recorder: record.map(UsageRecorder::begin).transpose()?,
            listed: None,
            last: None,
        })
    }

    /// What was wrong in each observation of a recording, with the VMs of these names, or those that were asked for when it was made.
    /// Needs no privileges. Returns whether the recording is complete; it is an error if it is not, once what is there was told, unless
    /// `unfinished` is set.
    ///
    /// # Errors
    /// If the file cannot be read or has no counters, or if a name is that of no VM in it.
    pub fn replay_diagnosis(
        file: &Path,
        names: &[String],
        unfinished: bool,
        told: &mut dyn FnMut(&Diagnosis),
    ) -> Result<bool, Error> {
        let failed = |source| Error::Replay(trace::Error::Replay { path: file.to_owned(), source });
        let opened = File::open(file).map_err(|source| failed(recording::Error::Io { at: 0, source }))?;
        let input = BufReader::with_capacity(1 << 18, opened);
        let reader = if unfinished { Reader::unfinished(input) } else { Reader::new(input) };
        let mut reader = reader.map_err(failed)?;
        let mut missing: BTreeSet<&String> = names.iter().collect();
        let mut observed: Option<ObservedVms> = None;
        let mut samples: Vec<Sample> = Vec::new();
        while let Some(item) = reader.next().map_err(failed)? {
            match item {
                Item::Observed(mut found) => {
                    if !names.is_empty() {
                        found.selected = named(&found, names, &mut missing);
                    }
                    // An observation begins anew.
                    samples.clear();
                    observed = Some(found);
                }
                Item::Sample(sample) => {
                    let (Some(observed), ends) = (&observed, sample.ends) else { continue };
                    // An observation begins with an end; a recording may claim that it has any number of samples.
                    if ends || (1..=MOST as usize).contains(&samples.len()) {
                        samples.push(*sample);
                    }
                    if samples.iter().map(entries).sum::<usize>() > MAX_ENTRIES {
                        let what = "the samples of an observation have more than 2,000,000 entries";
                        return Err(failed(recording::Error::Malformed { at: 0, what }));
                    }
                    if ends && samples.len() > 1 {
                        told(&diagnosis(observed, &samples));
                        samples.drain(..samples.len() - 1);
                    }
                }
                Item::Event(_) | Item::Change(_) => {}
            }
        }
        match missing.first() {
            _ if observed.is_none() => Err(Error::NoCounters(file.to_owned())),
            Some(name) => {
                Err(Error::Selection(format!("the recording has no VM `{}`", printable(name.as_str()))))
            }
            None => Ok(!reader.is_cut()),
        }
    }
}

/// Looks at the counters of VMs, and at what probes have counted of their threads.
fn look(reader: &mut UsageReader, probes: Option<&Probes>, vms: &[Vm], look: Look) -> Sample {
    let mut sample = reader.look(vms, look);
    let Some(probes) = probes else { return sample };
    for vm in sample.vms.values_mut() {
        for (tid, thread) in &mut vm.threads {
            thread.census = probes.read(*tid, teiji_host::now).map(Box::new);
        }
    }
    sample
}

/// How many entries the lists of a sample have.
fn entries(sample: &Sample) -> usize {
    // A census is as long as ten other entries.
    let of_thread = |thread: &ThreadUsage| if thread.census.is_some() { 11 } else { 1 };
    let of_threads = |vm: &VmUsage| vm.threads.values().map(of_thread).sum::<usize>();
    let of_vm = |vm: &VmUsage| 1 + of_threads(vm) + vm.groups.len() + vm.taps.len() + vm.delaying.len();
    let limits = sample.rate_limits.values().map(|limits| 1 + limits.len()).sum::<usize>();
    let copying = sample.migrations.values().map(|threads| 1 + threads.len()).sum::<usize>();
    let of_vms = sample.vms.values().map(of_vm).sum::<usize>();
    of_vms + sample.cpus.len() + sample.threads.len() + limits + copying
}

fn diagnosis(observed: &ObservedVms, samples: &[Sample]) -> Diagnosis {
    let mut diagnosis = teiji_analysis::diagnose::diagnose(&observed.vms, samples);
    let place = |pid: u32| observed.selected.iter().position(|selected| *selected == pid);
    diagnosis.vms.retain(|vm| place(vm.pid).is_some());
    diagnosis.vms.sort_by_key(|vm| place(vm.pid));
    for vm in &mut diagnosis.vms {
        vm.unseen.extend(observed.uncounted.iter().map(|what| printable(what)));
    }
    diagnosis
}

/// The process ids of the recorded VMs of these names, or given as `pid:N`; those that are there are no longer `missing`.
fn named(observed: &ObservedVms, names: &[String], missing: &mut BTreeSet<&String>) -> Vec<u32> {
    let mut all = Vec::new();
    for name in names {
        for vm in &observed.vms {
            if (vm.name == *name || format!("pid:{}", vm.pid) == *name) && !all.contains(&vm.pid) {
                all.push(vm.pid);
                missing.remove(name);
            }
        }
    }
    all
}

/// A recording of the counters of VMs. One that fails, as the disk is full, ends by itself; the observation goes on.
struct UsageRecorder {
    path: PathBuf,
    recorder: Result<Recorder, recording::Error>,
    /// When the last sample was taken, ns.
    ended: u64,
}

impl UsageRecorder {
    fn begin(path: &Path) -> Result<Self, Error> {
        let failed = |source| Error::Trace(trace::Error::Record { path: path.to_owned(), source });
        let output = Output::create(path, Rights::Kept);
        let output = output.map_err(|source| failed(recording::Error::Io { at: 0, source }))?;
        let meta = trace::meta(Watch::default(), Vec::new());
        let recorder = Recorder::begin(output, &meta).map_err(failed)?;
        Ok(UsageRecorder { path: path.to_owned(), recorder: Ok(recorder), ended: 0 })
    }

    fn observed(&mut self, observed: &ObservedVms) {
        self.write(|recorder| recorder.observed(observed));
    }

    fn sample(&mut self, sample: &Sample) {
        self.ended = sample.at;
        let so_far = self.counters();
        self.write(|recorder| {
            recorder.sample(sample)?;
            // What is in the file until here can be read while it is being written.
            if sample.ends { recorder.sync(&so_far) } else { Ok(()) }
        });
    }

    fn counters(&self) -> Counters {
        Counters { ended: self.ended, ..Counters::default() }
    }

    fn write(&mut self, write: impl FnOnce(&mut Recorder) -> Result<(), recording::Error>) {
        let Ok(recorder) = &mut self.recorder else { return };
        if let Err(source) = write(recorder) {
            tracing::warn!(
                "{}: {source}: nothing more is recorded, and the file is removed",
                self.path.display()
            );
            self.recorder = Err(source);
        }
    }

    /// Completes the recording and gives it its name.
    fn finish(self) -> Result<(), Error> {
        let counters = self.counters();
        let finished = self.recorder.and_then(|recorder| recorder.finish(&counters));
        finished.map_err(|source| Error::Trace(trace::Error::Record { path: self.path, source }))
    }
}
