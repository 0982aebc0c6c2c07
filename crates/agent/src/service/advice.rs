//! Advice beside a report: why there is no request, and what would help.

use teiji_analysis::absence;
use teiji_control::suggest;
use teiji_model::advice::Advice;
use teiji_model::observed::Observed;
use teiji_model::report::{Report, VmReport};

/// For each VM of a report, in their order.
pub fn of(report: &Report) -> Vec<Advice> {
    let suggestion = suggest::suggest(report, None);
    let one = |(vm, advice): (&VmReport, &suggest::VmSuggestion)| Advice {
        absence: if vm.total.is_none() { absence::why(report, vm) } else { Vec::new() },
        help: suggestion.of(advice),
    };
    report.vms.iter().zip(&suggestion.vms).map(one).collect()
}

/// What would help, as a policy. `observed` is the host, if it is the one that was traced.
pub fn as_policy(report: &Report, observed: Option<&Observed>) -> String {
    suggest::suggest(report, observed).to_string()
}
