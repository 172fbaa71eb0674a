package tidegate

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

type caseStep struct {
	Do          string
	Ms          int64
	Call        string
	Rule, Limit string
	Key         json.RawMessage
	Cost        *int64
	ID          string
	Checks      []caseStep
	Model       string
	Usage       any
	TTLMs       int64 `json:"ttl_ms"`
	Costs       map[string]int64
	Save        string
	Reservation json.RawMessage
	Expect      map[string]any
	Until       map[string]any
	Error       map[string]any
}

type sharedCase struct {
	Name   string
	Server struct{ Store, Token string }
	Client struct {
		OnNoAnswer string              `json:"on_no_answer"`
		LocalShare float64             `json:"local_share"`
		DeadlineMs int64               `json:"deadline_ms"`
		Limits     map[string][]string `json:"limits"`
		Token      string
	}
	Steps []caseStep
}

func TestTheSharedCasesHold(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(clientsFolder, "cases.json"))
	if err != nil {
		t.Fatal(err)
	}
	var table struct{ Cases []sharedCase }
	if err := json.Unmarshal(text, &table); err != nil {
		t.Fatal(err)
	}
	for _, one := range table.Cases {
		one := one
		t.Run(one.Name, func(t *testing.T) { runCase(t, one) })
	}
}

func runCase(t *testing.T, one sharedCase) {
	server := startServer(t, one.Server.Store, one.Server.Token, policyOfCases())
	settings := map[string]OnNoAnswer{"allow": Allow, "deny": Deny, "local": Local}
	client := newClient(t, server.url(), Options{
		Token:      one.Client.Token,
		Deadline:   time.Duration(one.Client.DeadlineMs) * time.Millisecond,
		OnNoAnswer: settings[one.Client.OnNoAnswer],
		LocalShare: one.Client.LocalShare,
		Limits:     one.Client.Limits,
	})
	saved := map[string]*Reservation{}
	actions := map[string]func(){
		"kill_server": server.kill, "start_server": server.start,
		"freeze_server": server.freeze, "thaw_server": server.thaw,
		"stop_store": server.stopStore, "start_store": server.startStore,
	}
	for _, step := range one.Steps {
		if step.Do == "sleep" {
			time.Sleep(time.Duration(step.Ms) * time.Millisecond)
		} else if step.Do != "" {
			actions[step.Do]()
		} else {
			runStep(t, client, step, saved)
		}
	}
}

func runStep(t *testing.T, client *Client, step caseStep, saved map[string]*Reservation) {
	t.Helper()
	end := time.Now().Add(30 * time.Second)
	result, err := call(client, step, saved)
	for step.Until != nil && (err != nil || !matches(step.Until, result)) && time.Now().Before(end) {
		time.Sleep(50 * time.Millisecond)
		result, err = call(client, step, saved)
	}
	if step.Error != nil {
		var failure *Error
		if !errors.As(err, &failure) {
			t.Fatalf("%+v: %v, %v", step, result, err)
		}
		fields := map[string]any{
			"kind": string(failure.Kind), "status": float64(failure.Status), "field": failure.Field,
		}
		if !matches(step.Error, fields) {
			t.Fatalf("%+v: %v", step, fields)
		}
		return
	}
	if err != nil || !matches(step.Expect, result) || !matches(step.Until, result) {
		t.Fatalf("%+v: %v, %v", step, result, err)
	}
}

func call(client *Client, step caseStep, saved map[string]*Reservation) (map[string]any, error) {
	ctx := context.Background()
	switch step.Call {
	case "load_limits":
		limited, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		return map[string]any{}, client.LoadLimits(limited)
	case "check":
		if step.ID != "" {
			decision, err := client.CheckID(ctx, step.ID, checksOf(step)...)
			return fieldsOf(decision), err
		}
		decision, err := client.Check(ctx, checksOf(step)...)
		return fieldsOf(decision), err
	case "reserve":
		options := ReserveOptions{milliseconds(step.TTLMs), step.Model, step.Usage}
		reservation, err := client.Reserve(ctx, options, checksOf(step)...)
		if err != nil {
			return nil, err
		}
		saved[step.Save] = reservation
		fields := fieldsOf(reservation.Decision)
		fields["reservation"] = nil
		if reservation.ID != "" {
			fields["reservation"] = reservation.ID
		}
		fields["expires_in_ms"] = float64(reservation.ExpiresIn.Milliseconds())
		return fields, nil
	}
	var name string
	var id struct{ ID string }
	reservation := saved[name]
	if json.Unmarshal(step.Reservation, &name) == nil {
		reservation = saved[name]
	} else if err := json.Unmarshal(step.Reservation, &id); err == nil {
		reservation = client.Reservation(id.ID)
	}
	var settlement Settlement
	var err error
	if step.Call == "cancel" {
		settlement, err = reservation.Cancel(ctx)
	} else {
		commit := Commit{step.Cost, step.Costs, step.Model, step.Usage}
		settlement, err = reservation.Commit(ctx, commit)
	}
	encoded, _ := json.Marshal(settlement)
	fields := map[string]any{}
	_ = json.Unmarshal(encoded, &fields)
	return fields, err
}

func checksOf(step caseStep) []Check {
	rows := step.Checks
	if rows == nil {
		rows = []caseStep{step}
	}
	var checks []Check
	for _, row := range rows {
		check := Check{Rule: row.Rule, Limit: row.Limit}
		var part string
		if json.Unmarshal(row.Key, &part) == nil {
			check.Key = Key{part}
		} else if row.Key != nil {
			_ = json.Unmarshal(row.Key, (*[]string)(&check.Key))
		}
		if row.Cost != nil {
			check.Cost, check.Peek = *row.Cost, *row.Cost == 0
		}
		checks = append(checks, check)
	}
	return checks
}

func fieldsOf(d Decision) map[string]any {
	fields := map[string]any{
		"allowed": d.Allowed, "limit": float64(d.Limit), "remaining": float64(d.Remaining),
		"retry_after_ms": float64(d.RetryAfter.Milliseconds()), "never": d.Never, "rule": d.Rule,
		"source": d.Source,
	}
	if d.RetryAfter == InfDuration {
		fields["retry_after_ms"] = nil
	}
	return fields
}

func matches(expected, found any) bool {
	switch expected := expected.(type) {
	case map[string]any:
		if from, isRange := expected["from"].(float64); isRange {
			number, isNumber := found.(float64)
			return isNumber && from <= number && number <= expected["to"].(float64)
		}
		fields, isObject := found.(map[string]any)
		for name, value := range expected {
			if field, has := fields[name]; !isObject || !has || !matches(value, field) {
				return false
			}
		}
		return true
	case []any:
		list, isList := found.([]any)
		if !isList || len(list) != len(expected) {
			return false
		}
		for i := range expected {
			if !matches(expected[i], list[i]) {
				return false
			}
		}
		return true
	}
	return expected == found
}
