//! Pairs of end points: named ones, and ones that the program makes.

use super::options::{Between, Options};
use anyhow::{Context as _, Result};
use heddle_measure::attach::{Attachment, Deployment, Made, Maker, Switch};
use heddle_measure::factors::Device;
use heddle_measure::keeper::Keeper;
use heddle_measure::peer::Peer;
use heddle_measure::place::Place;
use heddle_measure::runner::{Contender, Ends};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// All pairs of a run, each with its name and its devices.
#[derive(Default)]
pub(super) struct Pairs {
    pub(super) ends: Vec<Ends>,
    pub(super) names: Vec<String>,
    pub(super) devices: Vec<Vec<Device>>,
    /// Contenders that this node does not support, and the reason.
    pub(super) unavailable: Vec<(String, String)>,
}

/// Names, clients and servers of pairs that were named.
pub(super) fn given(between: &[Between]) -> Result<Vec<(String, Place, Place)>> {
    let mut all: Vec<(String, Place, Place)> = Vec::new();
    for b in between {
        if let Between::Given { name, client, server } = b {
            anyhow::ensure!(!all.iter().any(|(n, ..)| n == name), "{name} is named twice");
            all.push((name.clone(), Place::find(client)?, Place::find(server)?));
        }
    }
    Ok(all)
}

/// Each pair with each variation.
pub(super) fn contenders(names: &[String], variations: &[Vec<(String, String)>]) -> Vec<Contender> {
    let mut all = Vec::new();
    for (ends, pair) in names.iter().enumerate() {
        for settings in variations {
            let words = settings
                .iter()
                .map(|(factor, value)| format!(" {factor}={value}"));
            all.push(Contender {
                name: format!("{pair}{}", words.collect::<String>()),
                ends,
                settings: settings.clone(),
            });
        }
    }
    all
}

impl Pairs {
    /// Starts the agents of a pair.
    pub(super) fn add(
        &mut self,
        options: &Options,
        name: &str,
        client: Place,
        server: Place,
        made: Option<&Made>,
    ) -> Result<()> {
        let sides = |i: usize| match name.split_once(',') {
            Some((a, b)) if made.is_none() => [a, b][i].to_owned(),
            _ => format!("{name}, {}", ["client", "server"][i]),
        };
        let a = Peer::start(&sides(0), &client, &options.client_processors()?, &options.remote)?;
        let b = Peer::start(&sides(1), &server, &options.server_processors()?, &options.remote)?;
        let addresses = match made {
            Some(made) => made.addresses.clone(),
            None if options.address.is_empty() => b.hello().addresses.clone(),
            None => options.address.clone(),
        };
        let mut devices = Vec::new();
        if options.varies() {
            devices = match (made, addresses.first()) {
                (Some(made), _) => [&client, &server].map(|p| Device::of(p, &made.device)).to_vec(),
                (None, Some(address)) => vec![
                    Device::towards(&client, *address).context(sides(0))?,
                    Device::towards(&server, *address).context(sides(1))?,
                ],
                (None, None) => anyhow::bail!("{}: no address leads to its device", sides(1)),
            };
        }
        self.ends.push(Ends {
            client: a,
            server: b,
            addresses,
            port: options.port,
        });
        self.names.push(name.to_owned());
        self.devices.push(devices);
        Ok(())
    }

    /// Makes the pairs that this node supports, and notes the reason for the others.
    pub(super) fn make(
        &mut self,
        options: &Options,
        keeper: &mut Keeper,
        pairs: &[(Attachment, Deployment)],
        enough: &AtomicBool,
    ) -> Result<()> {
        let switch = Switch::find(&options.rundir()).map_err(|e| e.to_string());
        let mut maker = Maker::new(keeper, switch);
        for (attachment, deployment) in pairs {
            if enough.load(Relaxed) {
                break;
            }
            let name = match deployment {
                Deployment::Same => attachment.name().to_owned(),
                Deployment::Across => format!("{} across", attachment.name()),
            };
            match maker.make(*attachment, *deployment) {
                Ok(made) => {
                    let (client, server) = (made.client.clone(), made.server.clone());
                    self.add(options, &name, client, server, Some(&made))?;
                }
                Err(e) => self.unavailable.push((name, format!("{e:#}"))),
            }
        }
        Ok(())
    }
}
