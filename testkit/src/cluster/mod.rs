//! Cluster of three masters with one replica each.

mod migration;
mod view;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use tempfile::TempDir;
use view::{Member, members};

use crate::builder::{Role, ServerBuilder};
use crate::replica::wait_in_sync;
use crate::tls::{Authority, Tls};
use crate::wait::until;
use crate::{Flavour, Server};

const MASTERS: usize = 3;
const SLOTS: usize = 16_384;

/// A master without a response is replaced after twice this time. With less, masters on a busy machine seem dead.
const NODE_TIMEOUT_MS: u32 = 1_000;

/// Cluster of six nodes. At first, nodes 0, 1 and 2 are masters of a third of the slots each, in order. Nodes 3, 4 and
/// 5 are their replicas.
///
/// The numbers identify the nodes. Forming the cluster takes some three seconds: a master waits for two before it
/// serves.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
    ids: Vec<String>,
    /// Authority that all nodes trust if they use TLS, and the folder of its files.
    authority: Option<(Authority, TempDir)>,
}

fn builder(flavour: Flavour) -> ServerBuilder {
    ServerBuilder::new(flavour, Role::ClusterNode { node_timeout_ms: NODE_TIMEOUT_MS })
}

impl Cluster {
    /// Starts a cluster and waits until all nodes report it healthy.
    pub fn start(flavour: Flavour) -> Self {
        Self::start_with(flavour, &[])
    }

    /// Starts a cluster whose nodes have additional options, see [`ServerBuilder::args`].
    pub fn start_with(flavour: Flavour, args: &[&str]) -> Self {
        Self::build(&builder(flavour).args(args.iter().copied()), None)
    }

    /// Starts a cluster that uses TLS, also between its nodes; see [`ca_path`](Self::ca_path).
    pub fn start_tls(flavour: Flavour) -> Self {
        let folder = tempfile::Builder::new().prefix("slidegate-").tempdir().expect("a folder can be made");
        let authority = Authority::make(folder.path());
        let tls = Tls::shared_args(&authority);
        let tls_options = ["--tls-cluster", "yes", "--tls-replication", "yes"].map(String::from);
        Self::build(&builder(flavour).tls().args(tls).args(tls_options), Some((authority, folder)))
    }

    fn build(builder: &ServerBuilder, authority: Option<(Authority, TempDir)>) -> Self {
        let nodes: Vec<Server> = (0..2 * MASTERS).map(|_| builder.clone().start()).collect();
        let ids = nodes.iter().map(|node| node.command(&["CLUSTER", "MYID"]).text()).collect();
        let cluster = Self { nodes, ids, authority };
        cluster.form();
        cluster
    }

    /// Addresses of all nodes, masters first. With TLS, these are the TLS ports.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(|node| (Ipv4Addr::LOCALHOST, self.port_of(node)).into()).collect()
    }

    /// Path of the certificate of the authority that all nodes trust.
    #[track_caller]
    pub fn ca_path(&self) -> PathBuf {
        let (authority, _) = self.authority.as_ref().expect("it was started with TLS");
        authority.ca_path()
    }

    fn port_of(&self, node: &Server) -> u16 {
        if self.authority.is_some() { node.tls().port() } else { node.port() }
    }

    /// Returns a node by its number.
    pub fn node(&self, number: usize) -> &Server {
        &self.nodes[number]
    }

    /// Numbers of the current masters.
    pub fn masters(&self) -> Vec<usize> {
        let members = self.members();
        let masters = members.iter().filter(|member| member.is_master() && member.is_healthy());
        masters.map(|master| self.number(&master.id)).collect()
    }

    /// Number of the replica of a master.
    #[track_caller]
    pub fn replica_of(&self, master: usize) -> usize {
        let members = self.members();
        let replica = members.iter().find(|member| member.master == self.ids[master] && member.is_healthy());
        self.number(&replica.unwrap_or_else(|| panic!("{master} has no replica")).id)
    }

    /// Number of the master that owns a slot.
    #[track_caller]
    pub fn owner_of(&self, slot: u16) -> usize {
        let members = self.members();
        let owner = members.iter().find(|member| member.owns(slot));
        self.number(&owner.unwrap_or_else(|| panic!("no node owns slot {slot}")).id)
    }

    /// Slot of a key.
    pub fn slot_of(&self, key: impl AsRef<[u8]>) -> u16 {
        let slot =
            self.alive().next().map(|node| node.command(&[b"CLUSTER", b"KEYSLOT".as_slice(), key.as_ref()]));
        slot.and_then(|slot| u16::try_from(slot.int()).ok()).expect("a node is alive and a slot is small")
    }

    /// Kills a master, waits until its replica has taken over and all nodes agree, and returns the replica's number.
    pub fn kill_master(&self, master: usize) -> usize {
        let members = self.members();
        let lost = members.iter().find(|member| member.id == self.ids[master]).and_then(Member::first_slot);
        let slot = lost.expect("it is a master that owns slots");
        self.node(master).kill();
        until("a replica has taken over", || {
            self.all_agree(|members| {
                let owner = members.iter().find(|member| member.owns(slot))?;
                (owner.id != self.ids[master] && owner.is_healthy()).then_some(())
            })
        });
        self.wait_healthy();
        self.owner_of(slot)
    }

    /// Waits until all living nodes report a healthy cluster and all replicas are linked to their masters, for example
    /// after a [`Server::restart`]. Does not wait for the replication of data, see
    /// [`wait_in_sync`](Self::wait_in_sync).
    pub fn wait_healthy(&self) {
        until("the cluster is healthy", || {
            self.alive().try_for_each(|node| {
                self.check_health(node).map_err(|seen| format!("{}: {seen}", node.port()))
            })
        });
    }

    /// Waits until each replica has everything that its master had at the time of the call.
    pub fn wait_in_sync(&self) {
        self.wait_healthy();
        for master in self.masters() {
            wait_in_sync(self.node(self.replica_of(master)), self.node(master));
        }
    }

    fn form(&self) {
        for (number, node) in self.nodes.iter().enumerate() {
            // Distinct epochs avoid a conflict resolution between the nodes.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()]).ok();
            let bus_port = node.bus_port.expect("a node of a cluster has a bus").to_string();
            let port = self.port_of(node).to_string();
            self.nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port]).ok();
        }
        for master in 0..MASTERS {
            let (first, end) = (master * SLOTS / MASTERS, (master + 1) * SLOTS / MASTERS);
            let range = [first.to_string(), (end - 1).to_string()];
            self.nodes[master].command(&["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]).ok();
        }
        until("the nodes know each other", || {
            self.all_agree(|members| {
                (members.len() == 2 * MASTERS && members.iter().all(Member::is_healthy)).then_some(())
            })
        });
        for (master, replica) in (MASTERS..2 * MASTERS).enumerate() {
            self.nodes[replica].command(&["CLUSTER", "REPLICATE", &self.ids[master]]).ok();
        }
        until("the nodes know the replicas", || {
            self.all_agree(|members| {
                let replicas = members.iter().filter(|member| self.ids[..MASTERS].contains(&member.master));
                (replicas.count() == MASTERS).then_some(())
            })
        });
        self.wait_healthy();
    }

    fn check_health(&self, node: &Server) -> Result<(), String> {
        let state = node.field(&["CLUSTER", "INFO"], "cluster_state")?;
        if state != "ok" {
            return Err(format!("its state is {state}"));
        }
        let members = members(node)?;
        let is_alive = |member: &&Member| self.nodes[self.number(&member.id)].is_alive();
        if let Some(unhealthy) = members.iter().filter(is_alive).find(|member| !member.is_healthy()) {
            return Err(format!("is not healthy: {unhealthy:?}"));
        }
        if let Some(replaced) =
            members.iter().filter(is_alive).find(|member| member.is_master() && !member.has_slots())
        {
            return Err(format!("does not know its replacement yet: {replaced:?}"));
        }
        match node.field(&["INFO", "replication"], "master_link_status") {
            Ok(link) if link != "up" => Err(format!("its master is {link}")),
            // A master has no such field.
            _ => Ok(()),
        }
    }

    /// Returns `Ok` if `wanted` accepts the view of each living node.
    fn all_agree<T>(&self, wanted: impl Fn(&[Member]) -> Option<T>) -> Result<(), String> {
        self.alive().try_for_each(|node| {
            let members = members(node)?;
            wanted(&members).map(drop).ok_or_else(|| format!("{} sees {members:?}", node.port()))
        })
    }

    fn alive(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().filter(|node| node.is_alive())
    }

    /// View of the first living node that responds.
    #[track_caller]
    fn members(&self) -> Vec<Member> {
        self.alive().find_map(|node| members(node).ok()).expect("a node is alive")
    }

    #[track_caller]
    fn number(&self, id: &str) -> usize {
        self.ids.iter().position(|own| own == id).expect("the ID belongs to this cluster")
    }
}
