//! The observed resources of a host, each with its value or the reason why it has none.
//!
//! A resource that is missing here does not exist on the host, or was not looked for. A resource with an error exists,
//! but it cannot be read or can never be changed, and so it is not changed.

use super::{Resource, ResourceError, Value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Index;

/// Resources, each with its value or the reason why it has none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Lists", into = "Lists")]
pub struct Resources(BTreeMap<Resource, Result<Value, ResourceError>>);

/// The form in a file.
#[derive(Serialize, Deserialize)]
struct Lists {
    settings: Vec<(Resource, Value)>,
    unreadable: Vec<(Resource, ResourceError)>,
}

impl Resources {
    /// The value of a resource; `None` if the resource does not exist or has none.
    pub fn get(&self, resource: &Resource) -> Option<&Value> {
        self.0.get(resource)?.as_ref().ok()
    }

    /// The same, with the resource as it was observed: its device may have another name than that of `resource`.
    pub fn get_named(&self, resource: &Resource) -> Option<(&Resource, &Value)> {
        let (observed, read) = self.0.get_key_value(resource)?;
        Some((observed, read.as_ref().ok()?))
    }

    /// Why a resource that exists has no value.
    pub fn error(&self, resource: &Resource) -> Option<&ResourceError> {
        self.0.get(resource)?.as_ref().err()
    }

    /// Whether a resource has a value.
    pub fn has_value(&self, resource: &Resource) -> bool {
        self.get(resource).is_some()
    }

    /// Records the result of reading a resource. A resource that is gone is left out.
    pub fn record(&mut self, resource: Resource, read: Result<Value, ResourceError>) {
        match read {
            Err(ResourceError::Gone(_)) => drop(self.0.remove(&resource)),
            read => drop(self.0.insert(resource, read)),
        }
    }

    /// Gives a resource a value; returns its former value, if it had one.
    pub fn insert(&mut self, resource: Resource, value: Value) -> Option<Value> {
        self.0.insert(resource, Ok(value))?.ok()
    }

    /// Removes a resource; returns its value, if it had one.
    pub fn remove(&mut self, resource: &Resource) -> Option<Value> {
        self.0.remove(resource)?.ok()
    }

    /// All resources, whether they have a value or not.
    pub fn all(&self) -> impl Iterator<Item = &Resource> {
        self.0.keys()
    }

    /// The resources that have a value.
    pub fn iter(&self) -> impl Iterator<Item = (&Resource, &Value)> {
        self.0.iter().filter_map(|(resource, read)| Some((resource, read.as_ref().ok()?)))
    }

    /// The resources that have a value, which can be changed.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (&Resource, &mut Value)> {
        self.0.iter_mut().filter_map(|(resource, read)| Some((resource, read.as_mut().ok()?)))
    }

    /// The resources that have no value, each with the reason.
    pub fn errors(&self) -> impl Iterator<Item = (&Resource, &ResourceError)> {
        self.0.iter().filter_map(|(resource, read)| Some((resource, read.as_ref().err()?)))
    }

    /// The resources that have a value, as a map.
    pub fn values(&self) -> BTreeMap<Resource, Value> {
        self.iter().map(|(resource, value)| (resource.clone(), value.clone())).collect()
    }
}

impl Index<&Resource> for Resources {
    type Output = Value;

    /// # Panics
    /// If the resource has no value.
    #[allow(clippy::expect_used)]
    fn index(&self, resource: &Resource) -> &Value {
        self.get(resource).expect("a resource that has a value")
    }
}

impl FromIterator<(Resource, Value)> for Resources {
    fn from_iter<I: IntoIterator<Item = (Resource, Value)>>(all: I) -> Self {
        Resources(all.into_iter().map(|(resource, value)| (resource, Ok(value))).collect())
    }
}

impl Extend<(Resource, Value)> for Resources {
    fn extend<I: IntoIterator<Item = (Resource, Value)>>(&mut self, all: I) {
        self.0.extend(all.into_iter().map(|(resource, value)| (resource, Ok(value))));
    }
}

impl From<BTreeMap<Resource, Value>> for Resources {
    fn from(all: BTreeMap<Resource, Value>) -> Self {
        all.into_iter().collect()
    }
}

impl From<Lists> for Resources {
    fn from(lists: Lists) -> Self {
        let mut all: Resources = lists.settings.into_iter().collect();
        for (resource, why) in lists.unreadable {
            all.record(resource, Err(why));
        }
        all
    }
}

impl From<Resources> for Lists {
    fn from(all: Resources) -> Self {
        let mut lists = Lists { settings: Vec::new(), unreadable: Vec::new() };
        for (resource, read) in all.0 {
            match read {
                Ok(value) => lists.settings.push((resource, value)),
                Err(why) => lists.unreadable.push((resource, why)),
            }
        }
        lists
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_from_absence_and_survives_a_file() {
        let mut all = Resources::default();
        let why = ResourceError::Unsupported("kvm is not loaded".into());
        all.record(Resource::HaltPoll, Err(why.clone()));
        all.record(Resource::IrqCpus(3), Err(ResourceError::Gone("interrupt 3".into())));
        all.record(Resource::IrqCpus(4), Ok(Value::Bytes(1)));
        assert_eq!((all.get(&Resource::HaltPoll), all.error(&Resource::HaltPoll)), (None, Some(&why)));
        assert_eq!((all.get(&Resource::IrqCpus(3)), all.error(&Resource::IrqCpus(3))), (None, None));
        let json = serde_json::to_string(&all).unwrap();
        assert_eq!(serde_json::from_str::<Resources>(&json).unwrap(), all);
        assert_eq!(all.values().len(), 1);
    }
}
