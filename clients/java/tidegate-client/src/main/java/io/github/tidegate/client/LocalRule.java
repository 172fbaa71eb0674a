package io.github.tidegate.client;

import java.net.InetAddress;
import java.net.UnknownHostException;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.regex.Pattern;

/**
 * Limits, lists and overrides of one rule, as {@code GET /v1/rules} describes it. A rule in shadow
 * mode has none of them.
 */
final class LocalRule {
    private static final String BYTE = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
    private static final Pattern IPV4 = Pattern.compile(BYTE + "(\\." + BYTE + "){3}");
    private static final Pattern IPV6 = Pattern.compile("[0-9a-fA-F.]*:[0-9a-fA-F:.]*");

    private final long estimate;
    private final List<String> key;
    private final List<String> limits;
    private final Entries deny;
    private final Entries allow;
    private final Map<List<String>, LimitsOfKey> overrides = new HashMap<>();

    private record LimitsOfKey(List<String> limits, Instant until) {}

    /**
     * A key as the server counts it: a client address in IPv6 by its /64.
     *
     * @param parts parts of the key
     * @param client the client address in the key; null without one
     */
    record CountedKey(List<String> parts, byte[] client) {}

    LocalRule(Map<String, Object> rule) {
        Map<String, Object> enforced = Boolean.TRUE.equals(rule.get("shadow")) ? Map.of() : rule;
        estimate = Math.max(1, Json.number(rule, "estimate"));
        key = texts(rule.get("key"));
        limits = texts(enforced.get("limits"));
        deny = new Entries(texts(enforced.get("deny")), true);
        allow = new Entries(texts(enforced.get("allow")), false);
        for (Map<String, Object> one : Json.objects(enforced, "overrides")) {
            Object given = one.get("key");
            List<String> parts = given instanceof List<?> ? texts(given)
                : List.of(String.valueOf(given));
            String until = Json.text(one, "until");
            overrides.put(keyOf(parts).parts(), new LimitsOfKey(texts(one.get("limits")),
                until.isEmpty() ? Instant.MAX : Instant.parse(until)));
        }
    }

    /** A rule that has only these limits. */
    static LocalRule of(List<String> limits) {
        return new LocalRule(Map.of("limits", limits));
    }

    private static List<String> texts(Object list) {
        return list instanceof List<?> items ? items.stream().map(String::valueOf).toList()
            : List.of();
    }

    /** The cost of a reservation without one. */
    long estimate() {
        return estimate;
    }

    /** All limits that some key may have. */
    Set<String> notations() {
        Set<String> all = new HashSet<>(limits);
        overrides.values().forEach(one -> all.addAll(one.limits()));
        return all;
    }

    CountedKey keyOf(List<String> given) {
        List<String> parts = new ArrayList<>(given);
        byte[] client = key.isEmpty() && given.size() == 1 ? parseAddress(given.get(0)) : null;
        for (int i = 0; i < Math.min(key.size(), parts.size()); i++) {
            byte[] address = key.get(i).equals("client_ip") ? parseAddress(given.get(i)) : null;
            if (address == null) {
                continue;
            }
            client = client == null ? address : client;
            parts.set(i, Arrays.toString(Arrays.copyOf(address, Math.min(address.length, 8))));
        }
        return new CountedKey(List.copyOf(parts), client);
    }

    List<String> limitsOf(CountedKey counted) {
        LimitsOfKey one = overrides.get(counted.parts());
        return one != null && Instant.now().isBefore(one.until()) ? one.limits() : limits;
    }

    boolean denies(CountedKey counted) {
        return deny.has(counted);
    }

    boolean exempts(CountedKey counted) {
        return allow.has(counted);
    }

    /**
     * An allow or deny list: networks match the client address, other entries a key of one part. A
     * single address on a deny list matches both.
     */
    private static final class Entries {
        private final Set<String> keys = new HashSet<>();
        private final List<Network> networks = new ArrayList<>();

        Entries(List<String> texts, boolean denies) {
            for (String text : texts) {
                Network network = Network.parse(text);
                if (network != null) {
                    networks.add(network);
                }
                if (network == null || denies && text.indexOf('/') < 0) {
                    keys.add(text);
                }
            }
        }

        boolean has(CountedKey counted) {
            return counted.parts().size() == 1 && keys.contains(counted.parts().get(0))
                || counted.client() != null
                && networks.stream().anyMatch(network -> network.contains(counted.client()));
        }
    }

    private record Network(byte[] address, int bits) {
        static Network parse(String text) {
            int slash = text.indexOf('/');
            String host = slash < 0 ? text : text.substring(0, slash);
            byte[] address = parseAddress(host);
            if (address == null) {
                return null;
            }
            int bits = slash < 0 ? 8 * address.length : Integer.parseInt(text.substring(slash + 1));
            // The length of an IPv4 network that is written in IPv6 counts 96 bits more.
            boolean mapped = slash >= 0 && address.length == 4 && host.indexOf(':') >= 0;
            return new Network(address, mapped ? bits - 96 : bits);
        }

        boolean contains(byte[] other) {
            int whole = bits / 8;
            int spare = 8 - bits % 8;
            return other.length == address.length
                && Arrays.equals(other, 0, whole, address, 0, whole)
                && (spare == 8 || (other[whole] & 0xff) >> spare == (address[whole] & 0xff) >> spare);
        }
    }

    /** The bytes of an address, of IPv4 in IPv6 those of IPv4; null if the text is no address. */
    private static byte[] parseAddress(String text) {
        if (!IPV4.matcher(text).matches() && !IPV6.matcher(text).matches()) {
            return null;
        }
        try {
            // Neither form is looked up: a name has no colon, and more than digits and dots.
            return InetAddress.getByName(text).getAddress();
        } catch (UnknownHostException e) {
            return null;
        }
    }
}
