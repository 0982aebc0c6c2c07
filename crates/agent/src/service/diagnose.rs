//! What is wrong with VMs, by the kernel's own counters: now, or in a recording.
//!
//! ```text
//!  host::usage ─► Sample, Sample, … ─┬───────────────────────────► analysis::diagnose ─► Diagnosis
//!                                    └─► UsageRecorder ─► file ─►        the same
//! ```

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
use teiji_model::diagnosis::Diagnosis;
use teiji_model::flow::Watch;
use teiji_model::recording::{self, Reader};
use teiji_model::report::Counters;
use teiji_model::stream::Item;
use teiji_model::text::printable;
use teiji_model::usage::{ObservedVms, Sample};

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
}

impl Service {
    /// What is wrong with the VMs of these names, or all VMs without any name, for `timing.length`, or until `stop` is set; and notes
    /// about other VMs of the same names, printable. Attaches no probe, and changes nothing. What was read goes into the recording
    /// as well, if there is one.
    ///
    /// # Errors
    /// Without root, or if a name is that of no VM or of several. A recording that fails is no error here: see
    /// [`UsageRecorder::finish`].
    pub fn diagnose(
        &self,
        names: &[String],
        timing: Timing,
        stop: &AtomicBool,
        mut recorder: Option<&mut UsageRecorder>,
    ) -> Result<(Diagnosis, Vec<String>), Error> {
        self.real("the counters of VMs below --root do not move, so nothing can be told from them")?;
        Service::needs_root("what threads of other users do, and KVM's statistics, are for root only")?;
        let selected = self.select(names, &[])?;
        let observed =
            ObservedVms { vms: self.root.vms()?, selected: selected.vms.iter().map(|vm| vm.pid).collect() };
        if let Some(recorder) = &mut recorder {
            recorder.observed(&observed);
        }
        let mut samples = Vec::new();
        let mut take = |whole: bool| {
            let sample = self.root.usage(&observed.vms, whole);
            if let Some(recorder) = &mut recorder {
                recorder.sample(&sample);
            }
            samples.push(sample);
        };
        take(true);
        let begun = Instant::now();
        let Timing { length, every } = timing;
        let interval = every.max(length / MOST);
        let mut next = interval;
        while !stop.load(Ordering::Relaxed) && begun.elapsed() < length {
            let at = next.min(length);
            std::thread::sleep(at.saturating_sub(begun.elapsed()).min(NOTICED));
            if begun.elapsed() >= next && next < length {
                take(false);
                // One that came late does not make the following ones crowd.
                next = begun.elapsed() + interval;
            }
        }
        take(true);
        Ok((diagnosis(&observed, &samples), selected.notes))
    }

    /// Begins a recording of what [`Service::diagnose`] reads.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn record_usage(path: &Path) -> Result<UsageRecorder, Error> {
        let failed = |source| Error::Trace(trace::Error::Record { path: path.to_owned(), source });
        let output = Output::create(path, Rights::Kept);
        let output = output.map_err(|source| failed(recording::Error::Io { at: 0, source }))?;
        let meta = trace::meta(Watch::default(), Vec::new());
        let recorder = Recorder::begin(output, &meta).map_err(failed)?;
        Ok(UsageRecorder { path: path.to_owned(), recorder: Ok(recorder), observed: None, ended: 0 })
    }

    /// What was wrong in each observation of a recording, with the VMs of these names, or those that were asked for when it was made.
    /// Needs no privileges. Returns whether the recording is complete; only then is it read if `unfinished` is not set.
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
                    samples.clear();
                    observed = Some(found);
                }
                Item::Sample(sample) => {
                    let (Some(observed), whole) = (&observed, sample.is_whole()) else { continue };
                    // The first of an observation is whole; a recording may claim that one has any number.
                    if whole || (1..=MOST as usize).contains(&samples.len()) {
                        samples.push(*sample);
                    }
                    if whole && samples.len() > 1 {
                        told(&diagnosis(observed, &samples));
                        samples.clear();
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

fn diagnosis(observed: &ObservedVms, samples: &[Sample]) -> Diagnosis {
    let mut diagnosis = teiji_analysis::diagnose::diagnose(&observed.vms, samples);
    let place = |pid: u32| observed.selected.iter().position(|selected| *selected == pid);
    diagnosis.vms.retain(|vm| place(vm.pid).is_some());
    diagnosis.vms.sort_by_key(|vm| place(vm.pid));
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
pub struct UsageRecorder {
    path: PathBuf,
    recorder: Result<Recorder, recording::Error>,
    /// What was written of the VMs last.
    observed: Option<ObservedVms>,
    /// When the last sample was taken, ns.
    ended: u64,
}

impl UsageRecorder {
    fn observed(&mut self, observed: &ObservedVms) {
        if self.observed.as_ref() != Some(observed) {
            self.write(|recorder| recorder.observed(observed));
            self.observed = Some(observed.clone());
        }
    }

    fn sample(&mut self, sample: &Sample) {
        self.ended = sample.at;
        let so_far = self.counters();
        let whole = sample.is_whole();
        self.write(|recorder| {
            recorder.sample(sample)?;
            // What is in the file until here can be read while it is being written.
            if whole { recorder.sync(&so_far) } else { Ok(()) }
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
    ///
    /// # Errors
    /// Why there is none.
    pub fn finish(self) -> Result<(), Error> {
        let counters = self.counters();
        let finished = self.recorder.and_then(|recorder| recorder.finish(&counters));
        finished.map_err(|source| Error::Trace(trace::Error::Record { path: self.path, source }))
    }
}
