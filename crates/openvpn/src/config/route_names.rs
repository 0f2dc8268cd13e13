//! Names in `route`, which are replaced by their addresses when the configuration is read.

use super::Files;
use super::reader::Directive;
use crate::negotiate::is_host_name;

/// The maximum number of names in one configuration.
const MAX_NAMES: usize = 64;
/// The maximum number of addresses of one name; further ones are ignored.
const MAX_ADDRESSES: usize = 16;

/// Replaces names, and counts them.
pub(super) struct RouteNames<'a> {
    files: &'a dyn Files,
    looked_up: usize,
}

impl<'a> RouteNames<'a> {
    pub(super) fn new(files: &'a dyn Files) -> Self {
        Self { files, looked_up: 0 }
    }

    /// Returns a directive for each address of the destination's name, with the first address of the gateway's name.
    /// Returns `None` if there is no name.
    ///
    /// # Errors
    /// A name has no address. As in openvpn, the route is then left out.
    pub(super) fn replace(&mut self, d: &Directive) -> Result<Option<Vec<Directive>>, String> {
        let name =
            |index: usize| d.get(index).filter(|word| d.name == "route" && is_host_name(word));
        let (to, via) = (name(0), name(2));
        if to.is_none() && via.is_none() {
            return Ok(None);
        }
        let gateway = via.map(|name| self.addresses(name)).transpose()?;
        let gateway = gateway.and_then(|found| found.into_iter().next());
        let with = |index: usize, address: Option<String>, mut d: Directive| {
            if let (Some(word), Some(address)) = (d.args.get_mut(index), address) {
                *word = address;
            }
            d
        };
        let base = with(2, gateway, d.clone());
        Ok(Some(match to {
            None => vec![base],
            Some(to) => {
                let found = self.addresses(to)?;
                found.into_iter().map(|address| with(0, Some(address), base.clone())).collect()
            }
        }))
    }

    fn addresses(&mut self, name: &str) -> Result<Vec<String>, String> {
        self.looked_up = self.looked_up.saturating_add(1);
        if self.looked_up > MAX_NAMES {
            return Err(format!("is left out: more than {MAX_NAMES} names would be looked up"));
        }
        let found = self
            .files
            .look_up(name)
            .map_err(|e| format!("is left out: {name} cannot be looked up: {e}"))?;
        Ok(found.iter().take(MAX_ADDRESSES).map(ToString::to_string).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::Ipv4Addr;
    use std::path::Path;

    use super::super::{Options, parse};
    use super::*;
    use crate::negotiate::{Destination, Via};

    struct Host(String);

    impl Files for Host {
        fn read(&self, _: &Path) -> io::Result<Vec<u8>> {
            Ok(self.0.clone().into_bytes())
        }

        fn look_up(&self, name: &str) -> io::Result<Vec<Ipv4Addr>> {
            match name {
                "two.example" => Ok(vec![[192, 0, 2, 1].into(), [192, 0, 2, 2].into()]),
                "many.example" => Ok((0..99).map(|n| [192, 0, 2, n].into()).collect()),
                "gw.example" => Ok(vec![[10, 0, 0, 1].into(), [10, 0, 0, 2].into()]),
                _ => Err(io::ErrorKind::NotFound.into()),
            }
        }
    }

    fn server(lines: &str) -> Options {
        let text = format!(
            "dev tun\nserver 10.8.0.0 255.255.255.0\ntopology subnet\nca a\ncert b\nkey c\ndh none\n{lines}"
        );
        parse(&["x".into()], &Host(text)).unwrap()
    }

    #[test]
    fn each_address_of_a_name_is_a_route() {
        let options = server("route two.example 255.255.255.255 net_gateway 5\n");
        let nets: Vec<_> = options.routes.v4.iter().map(|route| (route.to, route.via)).collect();
        let net = |text: &str| Destination::Net(text.parse().unwrap());
        assert_eq!(
            nets,
            [(net("192.0.2.1/32"), Via::Outside), (net("192.0.2.2/32"), Via::Outside)]
        );
        let options = server("route 10.1.0.0 255.255.0.0 gw.example\n");
        assert_eq!(options.routes.v4.len(), 1);
        assert_eq!(options.routes.v4[0].via, Via::Gateway([10, 0, 0, 1].into()));
        assert!(options.warnings.is_empty(), "{:?}", options.warnings);
    }

    #[test]
    fn a_name_without_an_address_leaves_out_its_route_alone() {
        let options = server("route lost.example\nroute 10.1.0.0 255.255.0.0\n");
        assert_eq!(options.routes.v4.len(), 1);
        assert!(options.warnings[0].contains("lost.example"), "{:?}", options.warnings);
    }

    #[test]
    fn names_and_their_addresses_are_bounded() {
        assert_eq!(server("route many.example\n").routes.v4.len(), MAX_ADDRESSES);
        let lines = "route two.example\n".repeat(100);
        assert_eq!(server(&lines).routes.v4.len(), 2 * MAX_NAMES);
    }

    #[test]
    fn other_words_are_not_looked_up() {
        for word in ["10.1.0.0", "vpn_gateway", "remote_host", "10.1/16", "a b", "", "300.1.1.1"] {
            assert!(!is_host_name(word), "{word}");
        }
        assert!(
            is_host_name("a") && is_host_name("x-1.example.") && !is_host_name(&"a".repeat(254))
        );
    }
}
