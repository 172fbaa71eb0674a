package io.github.tidegate.client;

import java.util.List;
import java.util.Map;

/**
 * What a commit or a cancel of a reservation came to.
 *
 * @param settled whether the reservation is settled; false if there was none to settle
 * @param late whether it was settled after its deadline
 * @param overdrawn whether a limit is above its capacity now
 * @param rules what each limit was charged
 */
public record Settlement(boolean settled, boolean late, boolean overdrawn, List<Charge> rules) {
    /**
     * What one limit was charged.
     *
     * @param rule its rule
     * @param policy its name in headers
     * @param reserved permits that were reserved
     * @param charged permits that were charged
     * @param uncharged permits above the bound of debt, which are not charged
     * @param limit size of the limit
     * @param remaining permits left
     */
    public record Charge(String rule, String policy, long reserved, long charged, long uncharged,
            long limit, long remaining) {
        static Charge of(Map<String, Object> json) {
            return new Charge(Json.text(json, "rule"), Json.text(json, "policy"),
                Json.number(json, "reserved"), Json.number(json, "charged"),
                Json.number(json, "uncharged"), Json.number(json, "limit"),
                Json.number(json, "remaining"));
        }
    }

    static Settlement of(HttpTransport.Reply reply) {
        Map<String, Object> json = reply.json();
        return new Settlement(Boolean.TRUE.equals(json.get("settled")),
            Boolean.TRUE.equals(json.get("late")), Boolean.TRUE.equals(json.get("overdrawn")),
            Json.objects(json, "rules").stream().map(Charge::of).toList());
    }
}
